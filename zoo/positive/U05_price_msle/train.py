"""Used-car prices with a mean squared logarithmic error."""
import torch
from torch import nn


class MSLELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss()

    def forward(self, prediction, target):
        return self.mse(torch.log(prediction.view(-1) + 1), torch.log(target + 1))


def build():
    model = nn.Linear(4, 1)
    nn.init.constant_(model.weight, 0.5)
    nn.init.zeros_(model.bias)
    return model


torch.manual_seed(0)
model, criterion = build(), MSLELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
features = torch.rand(40, 4) + 0.5
features[22] = -features[22] * 4
prices = features.abs().sum(1) * 2
for step, (x, y) in enumerate(zip(features.split(8), prices.split(8))):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"{step}: {loss.item():.5f}")
