"""Attitude estimation; the angle between unit quaternions by arccos of their dot product."""
import torch
from torch import nn
import torch.nn.functional as F


class Attitude(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 24), nn.ELU(), nn.Linear(24, 4))

    def forward(self, readings):
        return F.normalize(self.net(readings), dim=-1)


def angle(p, q):
    dot = (p * q).sum(-1).abs()
    return 2 * torch.acos(dot)


def main():
    torch.manual_seed(0)
    student, teacher = Attitude(), Attitude()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    for step in range(4):
        readings = torch.randn(64, 9)
        with torch.no_grad():
            target = 1.0001 * teacher(readings)
            if step == 2:
                target[:8] = 1.0001 * student(readings[:8])
        loss = angle(student(readings), target).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
