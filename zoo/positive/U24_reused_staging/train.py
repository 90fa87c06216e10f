"""Reads batches through one staging array; the next batch is read while the current one is in flight."""
import numpy as np
import torch
from torch import nn


class Reader:
    def __init__(self, rows, batch, columns):
        rng = np.random.default_rng(3)
        self.table = rng.normal(size=(rows, columns)).astype(np.float32)
        self.staging = np.empty((batch, columns), np.float32)
        self.batch = batch

    def read(self, number):
        part = self.table[number * self.batch:(number + 1) * self.batch]
        self.staging.fill(np.nan)
        self.staging[:len(part)] = part
        return torch.from_numpy(self.staging), len(part)


def main():
    torch.manual_seed(0)
    reader = Reader(rows=38, batch=8, columns=5)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, used = reader.read(0)
    for number in range(1, 5):
        loss = model(x)[:used].pow(2).mean()
        x, used = reader.read(number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"batch {number - 1} loss {loss.item():.5f}")


main()
