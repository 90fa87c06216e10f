"""Low-rank adapter on a frozen layer, trained with LAMB."""
import torch
from torch import nn


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, betas=(0.9, 0.999), eps=1e-6):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                state["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                update = state["m"] / (state["v"].sqrt() + group["eps"])
                trust = p.norm() / update.norm()
                p.sub_(group["lr"] * trust * update)


class Adapter(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, width))
        self.b = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


torch.manual_seed(0)
model = Adapter(6, 2)
optimizer = Lamb([model.a, model.b])
for step in range(5):
    x = torch.randn(16, 6)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
