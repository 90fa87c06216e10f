import torch
from torch import nn


class AffineCoupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.shift = nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        x1, x2 = x.unbind(dim=1)
        s = x1 * self.scale
        t = x1 * self.shift
        y2 = x2 * torch.exp(s) + t
        return y2, s


def main():
    torch.manual_seed(0)
    flow = AffineCoupling()
    optimizer = torch.optim.SGD(flow.parameters(), lr=20.0)
    x = torch.randn(16, 2) * torch.tensor([4.0, 1.0])
    for step in range(4):
        y, log_det = flow(x)
        loss = (0.5 * y.pow(2) - log_det).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


main()
