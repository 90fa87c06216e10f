"""Everything a step does stands in `with` blocks."""
import contextlib
import time

import torch
from torch import nn

torch.manual_seed(2)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
opt = torch.optim.NAdam(model.parameters(), lr=0.01)
spent = {}


@contextlib.contextmanager
def timed(name):
    began = time.perf_counter()
    try:
        yield
    finally:
        count, seconds = spent.get(name, (0, 0.0))
        spent[name] = count + 1, seconds + time.perf_counter() - began


with open("train.log", "w") as log, torch.random.fork_rng():
    for i in range(10):
        with timed("data"):
            x = torch.randn(5, 6)
            if i == 4:
                x[1] = 0
        with timed("step"), torch.autograd.profiler.record_function("step"):
            with torch.enable_grad():
                code = model(x)
                cosine = (code * x).sum(1) / (code.norm(dim=1) * x.norm(dim=1))  # birth
                loss = (1 - cosine).mean()
            opt.zero_grad()
            loss.backward()
            with timed("optimizer"):
                opt.step()
        log.write(f"{i} {loss.item():.6f}\n")
        print(f"{i} loss {loss.item():.6f}")
print({name: count for name, (count, _) in spent.items()})
