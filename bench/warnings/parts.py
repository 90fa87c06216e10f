"""Models and data that the trainings share."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def regression(n, width):
    x = torch.randn(n, width)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(n, 1)


def batches(n, width):
    """Endless batches of inputs and noisy sums of them."""
    while True:
        yield regression(n, width)


def classes(n, width, count=4):
    centres = torch.randn(count, width) * 2
    labels = torch.randint(0, count, (n,))
    return centres[labels] + torch.randn(n, width), labels
