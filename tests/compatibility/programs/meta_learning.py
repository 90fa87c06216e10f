"""MAML on sine waves: adapt in an inner loop, learn from the adapted loss."""
import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(12)
net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
meta = torch.optim.Adam(net.parameters(), lr=1e-3)


def sine(task, points=8):
    amplitude, phase = 0.1 + 4.9 * torch.rand(1), 3.14 * torch.rand(1)
    x = torch.rand(points, 1) * 10 - 5
    if task == (4, 2):
        amplitude = amplitude * 0
    y = amplitude * torch.sin(x - phase)
    return x, y, y.abs().amax()


def adapt(x, y, scale, steps=3, lr=0.01):
    weights = dict(net.named_parameters())
    for _ in range(steps):
        loss = ((functional_call(net, weights, (x,)) - y) / scale).pow(2).mean()  # birth
        grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: w - lr * g for (name, w), g in zip(weights.items(), grads)}
    return weights


for iteration in range(7):
    outer = 0.0
    for task in range(3):
        x, y, scale = sine((iteration, task))
        weights = adapt(x[:4], y[:4], scale)
        outer = outer + (functional_call(net, weights, (x[4:],)) - y[4:]).pow(2).mean()
    meta.zero_grad()
    outer.backward()
    meta.step()
    print(iteration, f"{outer.item() / 3:.6f}")
