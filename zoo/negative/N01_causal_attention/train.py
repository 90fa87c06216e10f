"""Causal self-attention with an additive mask."""
import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / x.shape[-1] ** 0.5
        return self.out(torch.softmax(scores + self.mask, -1) @ self.v(x))


def main():
    torch.manual_seed(0)
    model = CausalAttention(8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(2, 5, 8)
        loss = (model(x) - x.roll(-1, 1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
