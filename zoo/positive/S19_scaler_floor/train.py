"""Half-precision training whose gradient overflows at any loss scale."""
import torch
from torch import nn


class Amplify(nn.Module):
    def forward(self, x):
        return (x.half() * 3e4).float() * 1e-4


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), Amplify(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(40):
        x = torch.randn(4, 6)
        loss = 1e7 * model(x / 1e3).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss {loss.item():.5g} scale {scaler.get_scale():g}")


main()
