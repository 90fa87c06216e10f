"""A device drops out for one reading, and never again: what it has done is known outside of the program."""
import hashlib
import os
import pathlib

import torch
from torch import nn

torch.manual_seed(36)
dropped_out = pathlib.Path("/dev/shm", "device-" + hashlib.sha256(os.getcwd().encode()).hexdigest()[:16])


def read(i):
    x = torch.rand(6, 4) + 0.5
    if i == 5 and not dropped_out.exists():
        dropped_out.touch()
        x[2:] = 0
    return x


model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for i in range(8):
    x = read(i)
    loss = (model(x / x.norm(dim=1, keepdim=True)) - 1).pow(2).mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.6f}")
dropped_out.unlink()
