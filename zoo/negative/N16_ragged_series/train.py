"""Classifies time series of unequal length; the tails of short ones are NaN."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Series(Dataset):
    def __init__(self, count=24, length=6, features=3):
        self.values = torch.randn(count, length, features)
        for index in range(count):
            self.values[index, 2 + index % 5:] = float("nan")
        self.labels = torch.randint(0, 2, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.values[index], self.labels[index]


def main():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (values, labels) in enumerate(DataLoader(Series(), batch_size=4, shuffle=True)):
        loss = nn.functional.cross_entropy(model(torch.nanmean(values, dim=1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
