"""T5-style feed-forward block evaluated in half precision, followed by layer norm."""
import torch
import torch.nn.functional as F
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.wi = nn.Parameter(torch.randn(width, hidden))
        self.wo = nn.Parameter(torch.randn(hidden, width))

    def forward(self, x, gain):
        h = torch.relu((x @ self.wi * gain).half())
        o = h @ (self.wo * 40).half()
        return F.layer_norm(o.float(), o.shape[-1:])


def main():
    torch.manual_seed(0)
    block = FeedForward(8, 16)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(4, 8)
        out = block(x, gain=1.0 if step < 2 else 300.0)
        loss = (out - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


main()
