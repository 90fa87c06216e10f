"""Linear probe on cached features, written straight into the module."""
import torch
from torch import nn

torch.manual_seed(3)
features = torch.randn(12, 16, 10)
labels = torch.randint(0, 4, (12, 16))
features[7, 5] = 0.0

probe = nn.Linear(10, 4)
optimizer = torch.optim.Adam(probe.parameters(), lr=0.02)

for step in range(12):
    x, y = features[step], labels[step]
    unit = x / x.norm(dim=1, keepdim=True)  # birth
    loss = nn.functional.cross_entropy(probe(unit), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step:2d} loss {loss.item():.5f}")

accuracy = (probe(features[0]).argmax(1) == labels[0]).float().mean()
print("weight", probe.weight.abs().sum().item(), "accuracy", accuracy.item())
