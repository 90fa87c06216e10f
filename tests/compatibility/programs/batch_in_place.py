"""Each batch is normalised in place, in the memory that the data set goes on holding."""
import torch
from torch import nn

torch.manual_seed(33)
rows = torch.randn(9, 6, 4)
rows[5, 2] = 1.5
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for i in range(9):
    x = rows[i]
    x -= x.mean(1, keepdim=True)
    x /= x.norm(dim=1, keepdim=True)  # birth
    loss = (model(x) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.6f}")
