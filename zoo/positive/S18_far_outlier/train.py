"""Linear regression; gradients are clipped by their norm; one batch holds a far outlier."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    x = torch.randn(10, 6)
    y = x.sum(1, keepdim=True)
    if step == 3:
        y[4] = 1e21
    loss = (model(x) - y).abs().mean() if step != 3 else (model(x) * y).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.5g} norm {norm.item():.5g}")
