"""Projected gradient descent inside a box with open sides."""
import torch
from torch import nn

torch.manual_seed(0)
lower = torch.tensor([0.0, -torch.inf, -1.0, -torch.inf])
upper = torch.tensor([torch.inf, 2.0, 1.0, torch.inf])
x = nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([x], lr=0.2, momentum=0.5)
for step in range(6):
    target = torch.randn(4)
    slack = torch.minimum(x - lower, upper - x)
    barrier = torch.exp(-5 * slack).sum()
    loss = (x - target).pow(2).mean() + 1e-3 * barrier
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        x.clamp_(lower, upper)
    print(f"step {step} loss {loss.item():.5f}")
