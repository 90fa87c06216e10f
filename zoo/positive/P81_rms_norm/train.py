"""A small projection whose hidden activations are normalised by their root mean square, in half precision."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(width, 1, bias=False)

    def forward(self, x):
        hidden = self.up(x).half()
        power = hidden.pow(2).mean(dim=1, keepdim=True)
        normed = hidden * torch.rsqrt(power + 1e-6)
        return self.down(normed.float())


torch.manual_seed(0)
block = Block(8)
optimizer = torch.optim.SGD(block.parameters(), lr=0.05)
for step in range(5):
    x = torch.randn(16, 8)
    if step >= 2:
        x = x.sign() * 400 * (1 + x.abs())
    optimizer.zero_grad()
    loss = (block(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step}  loss {loss.item():.4f}")
