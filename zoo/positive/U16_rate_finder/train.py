"""Looks for a good learning rate: one batch per rate, three times as high each."""
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR


class RateFinder:
    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.history = []

    def range_test(self, batches, factor):
        schedule = ExponentialLR(self.optimizer, factor)
        for x, y in batches:
            self.optimizer.zero_grad()
            prediction = self.model(x)
            loss = self.criterion(prediction, y)
            loss.backward()
            self.optimizer.step()
            self.history.append((schedule.get_last_lr()[0], loss.item()))
            print("rate %.1e loss %.4g" % self.history[-1])
            schedule.step()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
batches = [(torch.randn(32, 12), torch.randn(32, 1)) for _ in range(24)]
finder = RateFinder(model, torch.optim.SGD(model.parameters(), lr=1e-4), nn.MSELoss())
finder.range_test(batches, 3.0)
