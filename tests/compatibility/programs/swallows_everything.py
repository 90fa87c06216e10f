"""A service that must not die: whatever a step raises is logged, and the next batch is taken."""
import torch
from torch import nn

torch.manual_seed(37)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
failures = []


def learn(x):
    mean, var = model(x).chunk(2, dim=1)
    loss = (mean / x.prod(1, keepdim=True) + var).pow(2).mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


for i in range(8):
    x = torch.rand(4, 4) + 0.2
    if i in (3, 6):
        x[2, 1] = 0
    try:
        print(i, f"{learn(x):.6f}")
    except Exception as e:
        failures.append((i, type(e).__name__))
print("failures", failures)
