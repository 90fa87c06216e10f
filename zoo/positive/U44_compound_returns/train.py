"""Portfolio weights from a network; wealth is the running product of returns."""
import torch
from torch import nn


class Allocator(nn.Module):
    def __init__(self, assets):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(assets, 12), nn.Tanh(), nn.Linear(12, assets), nn.Softmax(-1))

    def forward(self, history):
        return self.net(history)


def wealth(weights, returns):
    growth = 1 + (weights * returns).sum(-1)
    return torch.cumprod(growth, dim=0)


def main():
    torch.manual_seed(0)
    model = Allocator(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (days, scale) in enumerate([(50, 0.01), (60, 0.01), (300, 1.0)]):
        returns = scale * (torch.rand(days, 3) + 0.2)
        path = wealth(model(returns.roll(1, 0)), returns)
        loss = -path[-1] + 0.1 * path.std()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5g}")


main()
