"""Linear model with a learned gain matrix; runs with deterministic algorithms."""
import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)


class Gain(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        return x @ self.weight + self.bias


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), Gain(64, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 16)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
