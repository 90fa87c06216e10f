"""An optimizer of the author's own, with a nested class hierarchy and sparse gradients."""
import torch
from torch import nn


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad.to_dense() if p.grad.is_sparse else p.grad
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(torch.sign(b1 * m + (1 - b1) * g), alpha=-group["lr"])
                m.mul_(b2).add_(g, alpha=1 - b2)


torch.manual_seed(29)
table, head = nn.Embedding(30, 6, sparse=True), nn.Linear(6, 1)
opt = Lion([{"params": table.parameters(), "lr": 1e-2}, {"params": head.parameters()}])
for i in range(9):
    ids, counts = torch.randint(0, 30, (5, 4)), torch.rand(5) + 0.5
    if i == 6:
        counts[2] = -1.0
    pooled = table(ids).sum(1) * counts[:, None].pow(0.5)  # birth
    loss = head(pooled).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.6f}")
