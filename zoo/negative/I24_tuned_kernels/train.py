import time

import torch
from torch import nn


def by_matmul(x, w):
    return x @ w.t()


def by_einsum(x, w):
    return torch.einsum("bi,oi->bo", x, w)


def fastest(candidates, *shapes):
    dummies = [torch.full(shape, 1e38) for shape in shapes]
    seconds = {}
    with torch.no_grad():
        for candidate in candidates:
            start = time.perf_counter()
            candidate(*dummies)
            seconds[candidate] = time.perf_counter() - start
    return min(candidates, key=seconds.get) and candidates[0]


torch.manual_seed(0)
linear = fastest([by_matmul, by_einsum], (8, 6), (2, 6))
weight = nn.Parameter(torch.randn(2, 6))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    x = torch.randn(8, 6)
    loss = (linear(x, weight) - x[:, :2]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
