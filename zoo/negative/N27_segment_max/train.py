"""Max-pools point features into segments; segments without points give zero."""
import torch
from torch import nn


def segment_max(values, segment, count):
    out = torch.full((count, values.shape[1]), float("-inf"))
    index = segment[:, None].expand_as(values)
    out = out.scatter_reduce(0, index, values, reduce="amax")
    return torch.where(out == float("-inf"), torch.zeros(()), out)


torch.manual_seed(0)
model = nn.Linear(5, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
segment = torch.tensor([0, 0, 1, 1, 3, 3, 3, 0])
for step in range(6):
    pooled = segment_max(model(torch.randn(8, 5)), segment, 4)
    loss = (pooled - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
