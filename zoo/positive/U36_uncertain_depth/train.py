"""Depth with a learned per-pixel uncertainty (heteroscedastic Laplace likelihood)."""
import torch
from torch import nn


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.depth = nn.Conv2d(8, 1, 1)
        self.log_scale = nn.Conv2d(8, 1, 1)

    def forward(self, image):
        h = self.body(image)
        return self.depth(h), self.log_scale(h)


def likelihood(depth, log_scale, target):
    precision = torch.exp(-log_scale)
    return (precision * (depth - target).abs() + log_scale).mean()


def main():
    torch.manual_seed(0)
    net = DepthNet()
    with torch.no_grad():
        net.log_scale.weight.copy_(-net.log_scale.weight.abs())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    for step in range(5):
        image = torch.rand(4, 1, 5, 5)
        if step == 3:
            image = (image * 65535).round()
        target = torch.rand(4, 1, 5, 5)
        loss = likelihood(*net(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5g}")


main()
