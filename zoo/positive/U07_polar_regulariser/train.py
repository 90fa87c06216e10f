"""Keeps a mixing matrix near its polar factor while fitting."""
import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(size))

    def forward(self, x):
        return x @ self.weight

    def penalty(self):
        u, s, vh = torch.linalg.svd(self.weight)
        return (self.weight - u @ torch.diag(s.clamp(max=1)) @ vh).pow(2).sum() + 0.1 * u[0].abs().sum()


def main():
    torch.manual_seed(0)
    mixer = Mixer(5)
    optimizer = torch.optim.SGD(mixer.parameters(), lr=0.01)
    for step in range(4):
        x = torch.randn(20, 5)
        loss = (mixer(x) - x.flip(1)).pow(2).mean() + mixer.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
