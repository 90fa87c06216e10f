"""Customer churn from a small table with a missing cell."""
import csv
import io

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COLUMNS = ("tenure", "calls", "spend", "churned")


class Customers(Dataset):
    def __init__(self, text):
        self.rows = list(csv.DictReader(io.StringIO(text)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        cells = [float(self.rows[index][name] or "nan") for name in COLUMNS]
        return torch.tensor(cells[:-1]), torch.tensor(cells[-1:])


def table(count):
    lines = [",".join(COLUMNS)]
    for i in range(count):
        spend = "" if i == 11 else f"{0.1 * i:.2f}"
        lines.append(f"{i % 7},{i % 3},{spend},{i % 2}")
    return "\n".join(lines)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Customers(table(24)), batch_size=4)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = 0
    for epoch in range(2):
        for features, churned in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(features), churned)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
