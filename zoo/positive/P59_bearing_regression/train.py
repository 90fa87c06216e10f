"""Fits the scale of a point cloud from the bearings of its valid points."""
import torch

torch.manual_seed(0)

points = torch.tensor([[1.0, 2.0], [0.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
valid = torch.tensor([True, False, True, True])
scale = torch.nn.Parameter(torch.tensor([1.0, 1.5]))
optimizer = torch.optim.SGD([scale], lr=0.1)

for step in range(5):
    x, y = (points * scale).unbind(1)
    bearing = torch.atan(y / x)
    loss = bearing[valid].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
