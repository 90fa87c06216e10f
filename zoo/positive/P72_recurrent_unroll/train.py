"""Back-propagation through time; the unroll length grows by a curriculum, the rate by a warm-up."""
import torch
from torch import nn


class LinearRecurrence(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, width))
        self.register_buffer("transition", 1.3 * torch.eye(width))

    def forward(self, length):
        h = self.start
        for _ in range(length):
            h = h @ self.transition
        return h


def main():
    torch.manual_seed(0)
    net = LinearRecurrence(8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, step - 2) / 10)
    for step, length in enumerate([5, 5, 400, 400, 400]):
        optimizer.zero_grad()
        out = net(length)
        loss = out.sum() + net.start.pow(2).sum()
        loss.backward()
        optimizer.step()
        warmup.step()
        print(f"step {step} unroll {length} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
