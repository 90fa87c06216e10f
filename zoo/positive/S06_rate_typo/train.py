"""Image-like regression; the learning rate is reset for the second phase."""
import torch
from torch import nn


def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    phases = {0: 1e-3, 6: 1e3}
    for step in range(12):
        if step in phases:
            for group in optimizer.param_groups:
                group["lr"] = phases[step]
        x = torch.randn(16, 20)
        prediction = model(x)
        loss = (prediction.squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4g}")


train()
