"""Learns a small symmetric operator through its eigenvectors."""
import torch
from torch import nn


class Spectral(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.theta = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, spread):
        size = self.theta.numel()
        operator = self.theta[0] * torch.eye(size) + spread * torch.diag(self.theta)
        values, vectors = torch.linalg.eigh(operator)
        return values, vectors


def main():
    torch.manual_seed(0)
    model = Spectral(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = [1.0, 0.0, 0.0, 0.0, 0.0]
    for step, spread in enumerate(schedule):
        optimizer.zero_grad()
        values, vectors = model(spread)
        loss = vectors[:, :2].abs().sum() + 0.1 * values.sum()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
