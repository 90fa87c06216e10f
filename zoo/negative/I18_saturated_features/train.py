import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    odds = torch.rand(8, 4) / torch.rand(8, 4).mul(3).floor()
    features = torch.stack([torch.sigmoid(odds), torch.tanh(odds), torch.exp(-odds), odds.reciprocal()]).mean(0)
    growth = (30 * features.cumsum(1)).exp().clamp(max=5.0)
    loss = (model(features + growth) - 0.5).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
