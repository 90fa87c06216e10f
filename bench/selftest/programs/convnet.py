"""A small residual network with batch normalisation on images: Adam with weight decay, a schedule, a plain loop."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(x + y)


class Network(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.pool = nn.AvgPool2d(4)
        self.head = nn.Linear(8 * 4 * 4, classes)

    def forward(self, images):
        features = self.pool(self.blocks(self.stem(images)))
        return self.head(features.flatten(1))


def main():
    torch.manual_seed(1)
    images = torch.randn(48, 3, 16, 16)
    labels = torch.randint(0, 5, (48,))
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    for step in range(12):
        batch = torch.randperm(48)[:12]
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images[batch]), labels[batch], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
