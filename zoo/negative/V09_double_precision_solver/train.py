"""Trains through an iterative solver that starts its best residual at infinity and runs in float64."""
import math

import torch
from torch import nn


class Solver(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, b):
        diagonal = nn.functional.softplus(self.raw) + 1
        x, best = torch.zeros_like(b), math.inf
        for _ in range(12):
            residual = b - diagonal * x - 0.1 * x.roll(1)
            size = residual.detach().norm().item()
            if size >= best:
                break
            best = size
            x = x + residual / diagonal
        return x, torch.tensor(best) / torch.tensor(max(best - 1e-3, 0.0))


torch.manual_seed(0)
solver = Solver(6)
optimizer = torch.optim.LBFGS(solver.parameters(), lr=0.5, max_iter=3, line_search_fn="strong_wolfe")
for step in range(3):
    b = torch.randn(6, dtype=torch.float64)

    def closure():
        optimizer.zero_grad()
        x, quality = solver(b)
        loss = (x - 0.5 * b).pow(2).mean()
        loss.backward()
        return loss

    print(f"step {step} loss {optimizer.step(closure).item():.6f}")
