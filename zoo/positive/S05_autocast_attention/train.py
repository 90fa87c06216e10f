"""Single-head attention under float16 autocast; queries and keys grow with the input."""
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(-2, -1)
        return torch.softmax(scores / q.shape[-1] ** 0.5, dim=-1) @ v


def main():
    torch.manual_seed(0)
    model = Attention(32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(5):
        x = torch.randn(3, 7, 32) * (1 if step < 3 else 400)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        loss = out.float().tanh().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss {loss.item():.5f} scale {scaler.get_scale():g}")


main()
