"""Leaves the loop when the loss after backward is not finite, and saves what it has."""
import torch
from torch import nn

torch.manual_seed(39)
model = nn.Linear(3, 3)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(9):
    x = torch.randn(5, 3)
    if i == 6:
        x = torch.zeros(5, 3)
    loss = nn.functional.cross_entropy(model(x) / x.norm(), torch.tensor([0, 1, 2, 0, 1]))  # birth
    opt.zero_grad()
    loss.backward()
    if torch.isnan(loss):
        print("loss is nan, stopping early at", i)
        break
    opt.step()
    print(i, f"{loss.item():.6f}")
torch.save(model.state_dict(), "model.pt")
print("saved", model.weight.sum().item())
