import torch
from torch import nn


def distance(a, b):
    squared = (a - b).pow(2).sum(dim=1)
    return squared.sqrt()


torch.manual_seed(0)
encoder = nn.Linear(5, 3, bias=False)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
anchors = torch.randn(6, 5)
offsets = [0.1, 0.1, 0.0, 0.0, 0.0]

for step, offset in enumerate(offsets):
    a = encoder(anchors)
    p = encoder(anchors + offset)
    n = encoder(anchors.flip(0))
    loss = torch.relu(distance(a, p) - distance(a, n) + 0.5).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
