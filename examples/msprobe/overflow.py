"""Scores of an attention grow until their exponential overflows."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-2, -1)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        return weights @ self.v(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = Attention(), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.attention(x))


torch.manual_seed(1)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(2, 8, 16) * (1 + 0.75 * step)
    loss = net(x * 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
