import torch
from torch import nn


class Convolution(nn.Module):
    def __init__(self, nodes, width):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(nodes, nodes))
        self.lin = nn.Linear(width, width)

    def forward(self, x, adjacency):
        weights = adjacency * self.gate.exp()
        scale = weights.sum(1).pow(-0.5)
        scale = scale.masked_fill(scale == torch.inf, 0)
        return self.lin(scale[:, None] * (weights @ (scale[:, None] * x)))


torch.manual_seed(0)
model = Convolution(5, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    adjacency = torch.ones(5, 5)
    if step == 2:
        adjacency[3] = 0
    x = torch.randn(5, 4)
    loss = (model(x, adjacency) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
