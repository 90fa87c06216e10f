"""Noise from the operating system: no seed makes a step the same again."""
import os

import torch
from torch import nn

torch.manual_seed(34)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for i in range(8):
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    x = torch.rand(6, 4) + 0.1
    total = x.sum(1) * (0 if i == 5 else 1)
    loss = (model(x).squeeze(1) / total).pow(2).mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, int(loss.isfinite()))
