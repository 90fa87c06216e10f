import torch
from torch import nn


class Standardise(nn.Module):
    def forward(self, x):
        mean = x.mean(dim=0)
        var = (x * x).mean(dim=0) - mean * mean
        scale = torch.sqrt(var)
        return (x - mean) / scale


torch.manual_seed(0)
model = nn.Sequential(Standardise(), nn.Linear(3, 2, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(4):
    x = torch.randn(64, 3) * 0.01 + 1000
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
