import torch
from torch import nn


def guarded(rows, columns):
    whole = torch.full((rows + 2, columns), float("nan"))
    whole[1:-1] = torch.randn(rows, columns)
    return whole


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
table = guarded(30, 4)
for step in range(6):
    first = 1 + 6 * step
    x = table[first:first + 6]
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
