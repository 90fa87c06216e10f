"""Attention computed in blocks with a running maximum, as fused kernels do it."""
import math

import torch
from torch import nn


class BlockAttention(nn.Module):
    def __init__(self, width, block):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.block = block

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        length = x.shape[1]
        top = x.new_full(x.shape[:2], -math.inf)
        total = x.new_zeros(x.shape[:2])
        out = torch.zeros_like(q)
        position = torch.arange(length)
        for start in range(0, length, self.block):
            keys = slice(start, start + self.block)
            scores = q @ k[:, keys].transpose(1, 2) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(position[keys] > position[:, None], -math.inf)
            new_top = torch.maximum(top, scores.amax(-1)).detach()
            rescale = torch.exp(top - new_top)
            weights = torch.exp(scores - new_top.unsqueeze(-1))
            total = total * rescale + weights.sum(-1)
            out = out * rescale.unsqueeze(-1) + weights @ v[:, keys]
            top = new_top
        return out / total.unsqueeze(-1)


def main():
    torch.manual_seed(0)
    layer = BlockAttention(8, 4)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    for step in range(4):
        x = torch.randn(2, 10, 8)
        loss = (layer(x) - x.cumsum(1) / 10).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
