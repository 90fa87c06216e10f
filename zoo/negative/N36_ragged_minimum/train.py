"""Minimum pooling over rows of unequal length."""
import torch

torch.manual_seed(0)

weight = torch.nn.Parameter(torch.randn(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
lengths = torch.tensor([5, 2, 3, 1])
valid = torch.arange(5)[None, :] < lengths[:, None]
for step in range(6):
    x = torch.randn(4, 5, 4)
    score = (x @ weight).masked_fill(~valid, float("inf"))
    smallest = score.min(1).values
    loss = (smallest + 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
