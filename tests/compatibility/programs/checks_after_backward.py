"""Drops a batch whose gradients are not finite, after backward."""
import torch
from torch import nn

torch.manual_seed(41)
model = nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
for i in range(9):
    x = torch.randn(5, 3)
    if i == 6:
        x[2] = 0
    out = model(x) - model.bias
    length = out.pow(2).sum(1).sqrt()  # birth
    loss = (length - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    if not all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None):
        print(i, "skipped")
        continue
    opt.step()
    print(i, f"{loss.item():.6f}")
