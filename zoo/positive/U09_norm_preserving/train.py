"""Trains with an Adam that keeps the norm of every matrix where it was."""
import torch
from torch import nn


class NormAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - beta1)
                state["v"].lerp_(p.grad.square(), 1 - beta2)
                old = p.norm()
                p.sub_(group["lr"] * state["m"] / (state["v"].sqrt() + group["eps"]))
                p.mul_(old / p.norm())


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.gate = nn.Linear(2 * width, width, bias=False)
        nn.init.zeros_(self.gate.weight)

    def forward(self, x):
        return x + self.gate(torch.relu(self.up(x)))


torch.manual_seed(0)
model = nn.Sequential(Block(8), nn.Linear(8, 1, bias=False))
optimizer = NormAdam(model.parameters())
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 10, 1.0))
for step in range(5):
    x = torch.randn(16, 8)
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warmup.step()
    print(f"step {step} loss {loss.item():.5f}")
