"""Causal decoder block on left-padded prompts."""
import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, pad):
        q, k, v = self.qkv(x).chunk(3, -1)
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = q @ k.transpose(-1, -2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(future | pad[:, None, :], float("-inf"))
        return self.out(scores.softmax(-1) @ v)


def left_pad(lengths, size):
    return torch.arange(size)[None, :] < torch.tensor(lengths)[:, None]


def main():
    torch.manual_seed(0)
    model = Block(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        tokens = torch.randn(2, 5, 8)
        pad = left_pad([0, 0] if step == 0 else [0, 2], 5)
        hidden = model(tokens, pad)
        loss = (hidden * (~pad)[..., None]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
