"""Point-cloud encoder that pools over farthest-point samples."""
import torch
from torch import nn


def farthest_points(cloud, count):
    distance = torch.full((len(cloud),), float("inf"))
    chosen = [0]
    for _ in range(count - 1):
        newest = cloud[chosen[-1]]
        distance = torch.minimum(distance, (cloud - newest).pow(2).sum(1))
        chosen.append(int(distance.argmax()))
    return cloud[chosen], distance


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, cloud):
        points, spread = farthest_points(cloud, 6)
        return self.mlp(points).amax(0) + spread.mean()


torch.manual_seed(0)
encoder = Encoder()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
for step in range(5):
    cloud = torch.randn(32, 3)
    loss = (encoder(cloud) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
