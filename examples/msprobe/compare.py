"""compare.py EPS: a training whose norm has that epsilon."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16, eps=eps), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.up(x) * 0.2)))


torch.manual_seed(0)
net = Net(float(sys.argv[1]) if len(sys.argv) > 1 else 1e-5)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for _ in range(12):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (net(x) - 1).square().mean().backward()
    optimizer.step()
