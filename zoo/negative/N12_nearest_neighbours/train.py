"""Metric learning on the nearest neighbours within a batch."""
import torch
from torch import nn

torch.manual_seed(0)

embed = nn.Linear(8, 4)
optimizer = torch.optim.SGD(embed.parameters(), lr=0.1)
myself = torch.eye(16, dtype=torch.bool)

for step in range(6):
    z = embed(torch.randn(16, 8))
    distance = (z[:, None] - z[None, :]).pow(2).sum(-1)
    distance = distance.masked_fill(myself, float("inf"))
    nearest = distance.topk(3, dim=1, largest=False).values
    loss = nearest.mean() + torch.exp(-distance).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
