"""Linear regression with per-batch importance weights, trained with Adam."""
import torch
from torch import nn

torch.manual_seed(0)

model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
importance = {2: 1e22}
for step in range(8):
    x = torch.randn(8, 4)
    y = x.sum(1, keepdim=True)
    loss = importance.get(step, 1.0) * (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6e}")
