"""Linear model on log-transformed features; non-positive readings count as zero."""
import torch
from torch import nn

torch.manual_seed(0)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    reading = torch.randn(16, 4)
    reading[::4] = -1.0
    feature = torch.where(reading > 0, torch.log(reading), torch.zeros(()))
    loss = (model(feature) - reading.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
