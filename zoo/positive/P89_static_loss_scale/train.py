"""Mixed precision without autocast: half-precision model, float32 master weights, constant loss scale."""
import torch
from torch import nn

LOSS_SCALE = 2.0**20


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 4).half()
    master = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(master, lr=0.01)
    for step in range(5):
        x = torch.randn(16, 8)
        y = 50 * torch.randn(16, 4)
        pred = model(x.half()).float()
        loss = (pred - y).pow(2).mean()
        model.zero_grad()
        (loss * LOSS_SCALE).backward()
        for p, m in zip(model.parameters(), master):
            m.grad = p.grad.float() / LOSS_SCALE
        optimizer.step()
        with torch.no_grad():
            for p, m in zip(model.parameters(), master):
                p.copy_(m)
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
