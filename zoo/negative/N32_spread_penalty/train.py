"""Variance hinge on embeddings; the first batches are blank."""
import torch
from torch import nn


def spread_penalty(z):
    return torch.relu(1 - z.std(0)).mean()


def main():
    torch.manual_seed(0)
    embed = nn.Linear(6, 4, bias=False)
    optimizer = torch.optim.SGD(embed.parameters(), lr=0.1)
    for step in range(6):
        x = torch.zeros(8, 6) if step < 3 else torch.randn(8, 6)
        loss = spread_penalty(embed(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
