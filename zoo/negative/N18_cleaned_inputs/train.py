"""Sensor regression; raw readings are cleaned before the model sees them."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, raw):
        clean = torch.nan_to_num(raw, nan=0.0, posinf=3.0, neginf=-3.0)
        return self.linear(clean)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    raw = torch.randn(8, 4)
    raw[1, 2] = float("nan")
    raw[3, 0] = float("inf")
    if torch.isnan(raw).any():
        print(f"step {step} missing readings {int(torch.isnan(raw).sum())}")
    loss = (model(raw) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
