"""A small convolutional classifier with L2 pooling."""
import torch
import torch.nn.functional as F
from torch import nn


class L2Pool(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        energy = F.avg_pool2d(x.pow(2), self.size)
        return energy.sqrt()


def scans(batch, empty_corner):
    x = torch.rand(batch, 1, 12, 12) + 0.1
    if empty_corner:
        x[1, :, :8, :8] = 0
    return x, torch.randint(0, 4, (batch,))


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1, bias=False), L2Pool(4), nn.Flatten(), nn.Linear(54, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(6):
        x, y = scans(8, empty_corner=step == 3)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
