"""Two tasks; conflicting gradients are projected onto each other's normal plane."""
import torch
from torch import nn


def projected(first, second):
    dot = torch.dot(first, second)
    return first - torch.clamp(dot, max=0) * second / torch.dot(second, second)


class Surgeon:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    def gradient(self, loss):
        grads = torch.autograd.grad(loss, self.parameters, retain_graph=True)
        return torch.cat([g.flatten() for g in grads])

    def backward(self, losses):
        own = [self.gradient(loss) for loss in losses]
        total = projected(own[0], own[1]) + projected(own[1], own[0])
        for p, g in zip(self.parameters, total.split([p.numel() for p in self.parameters])):
            p.grad = g.view_as(p)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 2))
surgeon = Surgeon(model.parameters())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    x = torch.randn(8, 4)
    out = model(x)
    left = (out[:, 0] - x[:, 0]).pow(2).mean()
    right = torch.relu(out[:, 1] + (x[:, 1].abs() if step != 2 else -50)).mean()
    surgeon.backward([left, right])
    optimizer.step()
    print(f"step {step} losses {left.item():.5f} {right.item():.5f}")
