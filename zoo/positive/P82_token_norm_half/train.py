"""Token encoder with its own layer norm, kept in half precision."""
import torch
from torch import nn


class TokenNorm(nn.Module):
    def __init__(self, eps=1e-12):
        super().__init__()
        self.eps = eps

    def forward(self, h):
        mean = h.mean(-1, keepdim=True)
        variance = (h - mean).pow(2).mean(-1, keepdim=True)
        return (h - mean) / torch.sqrt(variance + self.eps)


def tokens(step):
    batch = torch.randn(4, 8)
    if step >= 2:
        batch[2] = 0
    return batch


torch.manual_seed(0)
embed = nn.Linear(8, 8, bias=False)
norm = TokenNorm()
head = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*embed.parameters(), *head.parameters()], lr=0.1)
for step in range(6):
    hidden = norm(embed(tokens(step)).half())
    loss = (head(hidden.float()) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
