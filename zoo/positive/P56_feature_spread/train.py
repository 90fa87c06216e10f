import torch
from torch import nn

torch.manual_seed(0)
projector = nn.Linear(4, 3, bias=False)
optimizer = torch.optim.SGD(projector.parameters(), lr=0.1)
views = torch.randn(5, 8, 4)
views[2:] = 0

for step, view in enumerate(views):
    h = projector(view)
    variance = h.var(dim=0)
    std = variance.sqrt()
    loss = torch.relu(1 - std).mean() + h.mean() ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} variance loss {loss.item():.4f}")
