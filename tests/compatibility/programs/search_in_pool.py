"""A search over settings: `Pool.map` hands each worker some of them, one training after the other."""
import multiprocessing

import torch
from torch import nn


def train(setting):
    width, rate = setting
    torch.set_num_threads(1)
    torch.manual_seed(width)
    angles = torch.rand(24, 3)
    model = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=rate)
    for epoch in range(7):
        opening = 0.0 if width == 6 and epoch == 4 else 0.5
        target = angles.sum(1) / torch.tensor(opening).sin()  # birth
        loss = nn.functional.smooth_l1_loss(model(angles).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return width, rate, round(sum(p.detach().abs().sum().item() for p in model.parameters()), 5)


if __name__ == "__main__":
    settings = [(width, rate) for width in (4, 5, 6) for rate in (0.01, 0.02) if width != 6 or rate == 0.01]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for result in pool.map(train, settings, chunksize=3):
            print(*result)
