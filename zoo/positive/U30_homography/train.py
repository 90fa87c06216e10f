"""Fits a homography; points at infinity keep their coordinates."""
import torch
from torch import nn


def from_homogeneous(points, eps=1e-8):
    z = points[..., -1:]
    scale = torch.where(z.abs() > eps, 1.0 / z, torch.ones_like(z))
    return scale * points[..., :-1]


class Homography(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(3))

    def forward(self, points):
        return from_homogeneous(points @ self.matrix.t())


def main():
    torch.manual_seed(0)
    model = Homography()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(5):
        points = torch.cat([torch.randn(7, 2), torch.ones(7, 1)], dim=1)
        if step == 2:
            points[6, 2] = 0.0
        target = points[:, :2] + 0.1
        loss = (model(points) - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
