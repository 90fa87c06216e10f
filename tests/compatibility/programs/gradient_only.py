"""The loss stays finite; the slope of a square root at zero does not."""
import torch
from torch import nn

torch.manual_seed(43)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for i in range(8):
    x = torch.randn(6, 4)
    points = model(x)
    pairs = torch.triu_indices(6, 6, 0 if i == 5 else 1)
    gap = points[pairs[0]] - points[pairs[1]]
    far = gap.pow(2).sum(1).sqrt()  # birth
    loss = torch.exp(-far).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.6f}")
