"""A stack of token mixers under activation checkpointing."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class RootMeanSquare(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.scale * x / x.pow(2).mean(-1, keepdim=True).sqrt()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = RootMeanSquare(width)
        self.mix = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + self.mix(self.norm(x))


class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def main():
    torch.manual_seed(0)
    model = Stack(12, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        tokens = torch.randn(4, 6, 12)
        if step == 3:
            tokens[2, 4:] = 0
        loss = (model(tokens) - tokens.roll(1, dims=1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
