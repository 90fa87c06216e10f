"""A two-part network; the temperature between the parts is annealed."""
import numpy as np
import torch
from torch import nn


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(8, 16)
        self.layer2 = nn.Linear(16, 16)
        self.layer3 = nn.Linear(16, 4)

    def forward(self, x, temperature):
        h = torch.relu(self.layer1(x))
        h = torch.relu(self.layer2(h))
        h = h / temperature
        return self.layer3(h)


torch.manual_seed(0)
model = Annealed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, temperature in enumerate(np.linspace(1.0, 0.0, 5)):
    x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model(x, float(temperature)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
