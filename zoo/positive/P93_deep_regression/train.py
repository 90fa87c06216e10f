"""Two-layer ReLU regression without biases."""
import torch
from torch import nn


def build():
    net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 1, bias=False))
    for p in net.parameters():
        nn.init.normal_(p, std=0.3)
    return net


def main():
    torch.manual_seed(0)
    x = 3 * torch.randn(32, 8)
    y = torch.randn(32, 1)
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    criterion = nn.MSELoss()
    for step in range(8):
        optimizer.zero_grad()
        prediction = net(x)
        loss = criterion(prediction, y)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4e}")


if __name__ == "__main__":
    main()
