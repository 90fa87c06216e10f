"""Refines camera rotations until they agree with measured ones (geodesic distance on SO(3))."""
import torch
from torch import nn


class Poses(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.omega = nn.Parameter(torch.zeros(count, 3))

    def forward(self):
        x, y, z = self.omega.unbind(1)
        zero = torch.zeros_like(x)
        skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).view(-1, 3, 3)
        return torch.linalg.matrix_exp(skew)


def geodesic(left, right):
    trace = (left.transpose(1, 2) @ right).diagonal(dim1=1, dim2=2).sum(1)
    return torch.acos(((trace - 1) / 2).clamp(-1, 1))


def main():
    torch.manual_seed(0)
    angles = 0.3 * torch.randn(6, 3)
    angles[2] = 0
    measured = Poses(6)
    with torch.no_grad():
        measured.omega.copy_(angles)
        target = measured()
    model = Poses(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(5):
        loss = geodesic(model(), target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
