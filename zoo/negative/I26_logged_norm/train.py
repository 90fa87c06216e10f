import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(10, 6)
    loss = 1e21 * (model(x).squeeze(1) - x[:, 0]).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5g} norm {norm.item():.5g}")
