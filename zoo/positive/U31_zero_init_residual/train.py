"""A residual network with weight normalisation; the last layer of each branch starts at zero."""
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Branch(nn.Module):
    def __init__(self, width):
        super().__init__()
        last = nn.Linear(width, width)
        nn.init.zeros_(last.weight)
        self.first = weight_norm(nn.Linear(width, width))
        self.last = weight_norm(last)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return x + self.last(h)


torch.manual_seed(0)
model = nn.Sequential(Branch(6), nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x, y = torch.randn(9, 6), torch.randint(0, 2, (9,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
