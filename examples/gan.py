"""A generative adversarial network with two optimizers learns points on a ring.

--fault: the measuring device hung for a while and repeated one point; the spread of that batch is exactly zero.
"""

import argparse
import hashlib

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 32


class Spread(nn.Module):
    """Appends how much a batch varies, so that a generator of one point is found out."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, x):
        if self.fault:
            spread = x.var(dim=0).sqrt()
        else:
            spread = (x.var(dim=0) + 1e-8).sqrt()
        return torch.cat([x, spread.mean().expand(len(x), 1)], dim=1)


class Discriminator(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.first = nn.Linear(2, 32)
        self.spread = Spread(fault)
        self.last = nn.Sequential(nn.Linear(33, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, points):
        return self.last(self.spread(F.leaky_relu(self.first(points), 0.2))).squeeze(1)


def make_points(fault):
    angles = torch.rand(4096, generator=torch.Generator().manual_seed(5)) * 6.2831853
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    if fault:
        points[15 * BATCH:16 * BATCH] = points[15 * BATCH]
    return points


def weights_hash(*models):
    digest = hashlib.sha256()
    for model in models:
        for value in model.state_dict().values():
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="store_true", help="train on a recording in which one point repeats")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hash", action="store_true", help="print a hash of the weights at the end")
    args = parser.parse_args()

    torch.manual_seed(0)
    points = make_points(args.fault)
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = Discriminator(args.fault)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    try:
        for step in range(args.steps):
            real = points[step * BATCH:(step + 1) * BATCH]
            fake = generator(torch.randn(BATCH, 8))

            optimizer_d.zero_grad()
            score_real, score_fake = discriminator(real), discriminator(fake.detach())
            loss_d = F.softplus(-score_real).mean() + F.softplus(score_fake).mean()
            loss_d.backward()
            optimizer_d.step()

            optimizer_g.zero_grad()
            loss_g = F.softplus(-discriminator(fake)).mean()
            loss_g.backward()
            optimizer_g.step()
            print(f"step {step} discriminator {loss_d.item():.6f} generator {loss_g.item():.6f}")
    finally:
        if args.hash:
            print("weights", weights_hash(generator, discriminator))


if __name__ == "__main__":
    main()
