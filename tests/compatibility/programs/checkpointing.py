"""Activation checkpointing of both sorts."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(n, 2 * n), nn.Linear(2 * n, n), nn.Dropout(0.1)

    def forward(self, x):
        h = self.drop(torch.relu(self.a(x)))
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))  # birth
        return x * scale + self.b(h)


torch.manual_seed(19)
first, second, head = Block(6), Block(6), nn.Linear(6, 1)
parameters = [p for m in (first, second, head) for p in m.parameters()]
opt = torch.optim.AdamW(parameters, lr=1e-3)
for i in range(8):
    x = torch.randn(4, 6)
    if i == 5:
        x[1] = 0
    x.requires_grad_()
    h = checkpoint(first, x, use_reentrant=True)
    h = checkpoint(second, h, use_reentrant=False)
    loss = head(h).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.6f}")
