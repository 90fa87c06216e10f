"""Tile segmentation; the background class carries no weight."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.classify = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        return self.classify(self.features(x))


class Tiles(torch.utils.data.Dataset):
    def __init__(self, count):
        self.images = torch.randn(count, 3, 8, 8)
        self.labels = torch.randint(0, 4, (count, 8, 8))
        self.labels[6:8] = 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def train():
    torch.manual_seed(0)
    net = Net(4)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 2.0, 2.0]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step, (image, label) in enumerate(torch.utils.data.DataLoader(Tiles(14), batch_size=2)):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(net(image), label)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"{step:3d} {loss.item():.4f}")


train()
