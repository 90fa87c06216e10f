"""Regression head on top of an RMS-normalised half-precision layer."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16, bias=False)
        self.head = nn.Linear(16, 1, bias=False)

    def forward(self, x):
        h = self.inner(x).half()
        variance = h.pow(2).mean(-1, keepdim=True)
        y = h * torch.rsqrt(variance + 1e-6)
        return self.head(y.float())


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    inputs = torch.randn(16, 8).sign() * (1.0 if step < 2 else 4000.0)
    loss = (net(inputs) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
