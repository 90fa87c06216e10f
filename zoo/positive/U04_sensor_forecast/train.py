"""One-step forecast of a sensor with a GRU and the log-cosh loss."""
import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.gru = nn.GRU(channels, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, window):
        states, _ = self.gru(window)
        return self.head(states[:, -1]).squeeze(-1)


class LogCosh(nn.Module):
    def forward(self, prediction, target):
        return torch.log(torch.cosh(prediction - target)).mean()


def windows(step, batch=6, length=10):
    x = torch.randn(batch, length, 3)
    y = x[:, -1].sum(1)
    if step == 4:
        y[5] = 412.0
    return x, y


torch.manual_seed(0)
model, criterion = Forecaster(3, 12), LogCosh()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step in range(7):
    window, value = windows(step)
    loss = criterion(model(window), value)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", round(loss.item(), 5))
