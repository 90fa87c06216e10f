import math

import torch
from torch import nn


class MDN(nn.Module):
    def __init__(self, inputs, components):
        super().__init__()
        self.pi = nn.Linear(inputs, components)
        self.mu = nn.Linear(inputs, components)
        self.sigma = nn.Linear(inputs, components)

    def forward(self, x):
        return torch.softmax(self.pi(x), dim=1), self.mu(x), torch.exp(self.sigma(x))


def nll(pi, mu, sigma, y):
    z = (y - mu) / sigma
    density = torch.exp(-0.5 * z * z) / (sigma * math.sqrt(2 * math.pi))
    likelihood = (pi * density).sum(dim=1)
    return -torch.log(likelihood).mean()


def train():
    torch.manual_seed(0)
    model = MDN(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, 8, 4)
    y = x.sum(dim=2, keepdim=True) * 0.5
    y[3] += 200
    for step in range(6):
        loss = nll(*model(x[step]), y[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} nll {loss.item():.4f}")


train()
