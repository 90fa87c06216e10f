import torch
from torch import nn


def guarded(rows, columns):
    whole = torch.full((rows + 2, columns), float("nan"))
    return whole, whole[1:-1]


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
whole, x = guarded(8, 4)
for step in range(4):
    x.normal_()
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert whole[0].isnan().all() and whole[-1].isnan().all()
    print(f"step {step} loss {loss.item():.5f}")
