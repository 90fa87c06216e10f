import torch
from torch import nn


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.logvar = nn.Linear(4, 3, bias=False)

    def forward(self, x, offset):
        lv = self.logvar(x) + offset
        variance = torch.exp(lv)
        std = torch.sqrt(variance)
        return torch.randn_like(std) * std, lv


def main():
    torch.manual_seed(0)
    sampler = Sampler()
    optimizer = torch.optim.SGD(sampler.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    for step in range(5):
        z, lv = sampler(x, 0.0 if step < 2 else -110.0)
        loss = z.pow(2).mean() + 0.0 * lv.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
