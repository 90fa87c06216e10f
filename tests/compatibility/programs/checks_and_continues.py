"""Drops a batch whose loss is not finite, before backward is called."""
import torch
from torch import nn

torch.manual_seed(40)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
dropped = 0
for i in range(9):
    x = torch.rand(5, 3)
    if i == 6:
        x[0] = -x[0]
    loss = (model(x).squeeze(1) - torch.log2(x.sum(1))).pow(2).mean()  # birth
    if not torch.isfinite(loss):
        dropped += 1
        continue
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.6f}")
print("dropped", dropped)
