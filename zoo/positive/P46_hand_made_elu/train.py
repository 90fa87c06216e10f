import torch
from torch import nn


class ELU(nn.Module):
    def forward(self, h):
        return torch.where(h > 0, h, torch.exp(h) - 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8, bias=False)
        self.act = ELU()

    def forward(self, x):
        return self.act(self.linear(x))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.randn(5, 16, 4)
data[2:] *= 150

for step in range(5):
    out = net(data[step])
    loss = 1e-6 * out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.3e}")
