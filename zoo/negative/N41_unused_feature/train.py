"""Linear regression with Adam; one feature column is always zero."""
import torch
from torch import nn

torch.manual_seed(0)

model = nn.Linear(4, 2, bias=False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(8):
    x = torch.randn(16, 4)
    x[:, 1] = 0
    loss = (model(x) - x[:, :2]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
