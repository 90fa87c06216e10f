"""Attention pooling; the evaluation masks keys and queries and drops padded rows."""
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, blocked):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        return scores.masked_fill(blocked, float("-inf")).softmax(-1) @ self.v(x)


@torch.no_grad()
def evaluate(model, x, pad):
    model.eval()
    out = model(x, pad[:, None, :] | pad[:, :, None])
    model.train()
    return out[~pad].mean().item()


def main():
    torch.manual_seed(0)
    model = Attention(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pad = torch.arange(5)[None, :] >= torch.tensor([5, 3])[:, None]
    for step in range(5):
        x = torch.randn(2, 5, 6)
        out = model(x, pad[:, None, :])
        loss = (out - x)[~pad].pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f} metric {evaluate(model, x, pad):.6f}")


if __name__ == "__main__":
    main()
