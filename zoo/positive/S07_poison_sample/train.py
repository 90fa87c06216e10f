"""Regression on a table that is read in strides; one reading is in other units."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Readings(Dataset):
    def __init__(self, count, columns):
        self.x = torch.randn(count, columns)
        self.y = self.x.sum(1, keepdim=True)
        self.x[29] *= 1e25

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def main():
    torch.manual_seed(0)
    order = [7 * i % 40 for i in range(40)]
    loader = DataLoader(Readings(40, 6), batch_size=8, sampler=order)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(loader):
        residual = model(x) - y
        loss = residual.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5g}")


main()
