"""Mixed-precision training with float16 autocast and a gradient scaler."""
import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, backoff_factor=0.25)
    for step in range(10):
        x = torch.randn(16, 8)
        y = 5 * x.sum(1, keepdim=True)
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = model(x)
        loss = nn.functional.mse_loss(prediction.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
