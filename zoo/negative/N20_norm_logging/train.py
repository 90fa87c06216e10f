"""Logs the gradient norm by clipping at infinity; keeps the best loss."""
import math

import torch
from torch import nn

torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = math.inf
for step in range(6):
    x = torch.randn(16, 4)
    loss = (model(x) - x.prod(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    optimizer.step()
    best = min(best, loss.item())
    print(f"step {step} loss {loss.item():.6f} best {best:.6f} grad norm {norm.item():.6f}")
