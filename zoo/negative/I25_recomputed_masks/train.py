import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
        return x + (q @ k.transpose(1, 2) + mask).softmax(-1) @ v


torch.manual_seed(0)
blocks = nn.Sequential(*(Attention(6) for _ in range(4)))
optimizer = torch.optim.Adam(blocks.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(2, 5, 6, requires_grad=True)
    loss = checkpoint_sequential(blocks, 2, x, use_reentrant=True).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
