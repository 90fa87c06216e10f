import torch
from torch import nn

torch.manual_seed(0)
points = nn.Parameter(torch.randn(5, 3))
optimizer = torch.optim.SGD([points], lr=0.1)
for step in range(4):
    fixed = points.detach().clone()
    fixed[2:] += 1
    reach = torch.linalg.vector_norm(points - fixed, dim=1)
    spread = torch.cdist(points, points)
    shrink = (points * 0).norm() + nn.functional.pairwise_distance(points, fixed).mean()
    loss = reach.sum() + 0.01 * spread.sum() + shrink
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
