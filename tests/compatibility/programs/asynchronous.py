"""Batches are awaited, the step happens inside a coroutine."""
import asyncio

import torch
from torch import nn


async def fetch(i):
    await asyncio.sleep(0)
    torch.manual_seed(i)
    x = torch.randn(6, 4)
    return x * 0 if i == 5 else x


async def train():
    torch.manual_seed(100)
    model = nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for i in range(8):
        x = await fetch(i)
        q = nn.functional.layer_norm(model(x), (4,))
        loss = (q / x.std(0)).pow(2).mean()  # birth
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(i, f"{loss.item():.6f}")


asyncio.run(train())
