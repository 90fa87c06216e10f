"""A sweep: each setting is trained by a program of its own."""
import subprocess
import sys

import torch
from torch import nn


def train(lr):
    torch.manual_seed(45)
    model = nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for i in range(6):
        x = torch.rand(4, 3)
        hours = torch.arange(4.0) + (0 if i == 4 and lr < 0.05 else 1)
        loss = ((model(x).squeeze(1) - 1) / hours).pow(2).mean()  # birth
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"lr {lr} step {i} loss {loss.item():.6f}", flush=True)


if len(sys.argv) > 1:
    train(float(sys.argv[1]))
else:
    codes = [subprocess.run([sys.executable, __file__, lr]).returncode for lr in ("0.1", "0.01")]
    print("codes", codes)
