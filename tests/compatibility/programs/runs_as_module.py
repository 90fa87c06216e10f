"""A program that is started by `python -m`."""
import sys

import torch
from torch import nn


def main():
    torch.manual_seed(47)
    model = nn.Sequential(nn.Linear(5, 9), nn.Softplus(), nn.Linear(9, 1))
    opt = torch.optim.RAdam(model.parameters(), lr=1e-2)
    for i in range(7):
        x = torch.rand(6, 5)
        if i == 4:
            x[0] = 1
        span = 1 - x.amax(1)
        loss = (model(x).squeeze(1) * span.rsqrt()).pow(2).mean()  # birth
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(i, f"{loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
