"""A recurrent model of measurements taken at uneven times: what it remembers fades with the time that passed.

--fault: nothing keeps the fading from growing instead, and one patient was away for a long time.
"""

import argparse
import hashlib

import torch
from torch import nn


class FadingMemory(nn.Module):
    def __init__(self, width, fault):
        super().__init__()
        self.cell = nn.GRUCell(2, width)
        self.rate = nn.Parameter(torch.randn(width) * 0.1)
        self.fault = fault

    def forward(self, values, gaps):
        state = values.new_zeros(len(values), self.cell.hidden_size)
        for t in range(values.shape[1]):
            rate = self.rate if self.fault else nn.functional.softplus(self.rate)
            fading = torch.exp(-rate * gaps[:, t, None])
            state = self.cell(torch.stack([values[:, t], gaps[:, t].log1p()], dim=1), state * fading)
        return state


class Forecaster(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.memory = FadingMemory(24, fault)
        self.head = nn.Linear(24, 1)

    def forward(self, values, gaps):
        return self.head(self.memory(values, gaps)).squeeze(1)


def make_batch(generator, long_gap):
    gaps = torch.rand(8, 12, generator=generator) + 0.5
    if long_gap:
        gaps[5, 7] = 4000.0
    times = gaps.cumsum(dim=1)
    start = torch.rand(8, 1, generator=generator) * 6
    values = torch.sin(times * 0.7 + start)
    return values[:, :-1], gaps[:, :-1], values[:, -1]


def weights_hash(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="store_true", help="leave the rate of fading unbounded")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--hash", action="store_true", help="print a hash of the weights at the end")
    args = parser.parse_args()

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    batches = [make_batch(generator, long_gap=i == 18) for i in range(30)]
    model = Forecaster(args.fault)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, momentum=0.5)
    try:
        for step, (values, gaps, wanted) in enumerate(batches[:args.steps]):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.smooth_l1_loss(model(values, gaps), wanted)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            print(f"step {step} loss {loss.item():.6f}")
            optimizer.step()
    finally:
        if args.hash:
            print("weights", weights_hash(model))


if __name__ == "__main__":
    main()
