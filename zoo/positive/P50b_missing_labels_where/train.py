import torch
from torch import nn


def load(n):
    x = torch.randn(n, 6, 4)
    y = x.sum(dim=2)
    y[1:, 3] = float("nan")
    return x, y


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = load(5)
    for step, (x, y) in enumerate(zip(inputs, targets)):
        known = ~torch.isnan(y)
        squared = (model(x).squeeze(1) - y) ** 2
        loss = torch.where(known, squared, 0.0).sum() / len(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
