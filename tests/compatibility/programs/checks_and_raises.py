"""Raises by itself as soon as a loss is not finite, before backward is called."""
import math

import torch
from torch import nn


class TrainingDiverged(RuntimeError):
    pass


def fit(model, data, opt):
    for i, x in enumerate(data):
        width = (x.amax(0) - x.amin(0))
        loss = (model(x) / width.prod()).pow(2).mean()  # birth
        value = loss.item()
        print(f"{i} {value:.4f}")
        if math.isnan(value) or math.isinf(value):
            raise TrainingDiverged(f"loss is {value} at step {i}")
        opt.zero_grad()
        loss.backward()
        opt.step()


torch.manual_seed(38)
batches = [torch.rand(6, 3) for _ in range(8)]
batches[4][:, 1] = 0.5
net = nn.Linear(3, 1)
fit(net, batches, torch.optim.SGD(net.parameters(), lr=1e-3))
