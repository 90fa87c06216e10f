"""Regression over a DataLoader. --fault: one record of the data set is empty, and the model divides by its length."""

import argparse
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Direction(nn.Module):
    """Rows scaled to length one."""

    def forward(self, rows):
        length = rows.pow(2).sum(dim=1, keepdim=True).sqrt()
        return rows / length


def make_data(fault):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(640, 12, generator=generator)
    if fault:
        rows[101] = 0
    wanted = torch.tanh(rows[:, :3].sum(dim=1, keepdim=True))
    return TensorDataset(rows, wanted)


def weights_hash(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="store_true", help="train on data with an empty record")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hash", action="store_true", help="print a hash of the weights at the end")
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(make_data(args.fault), batch_size=16, shuffle=True)
    model = nn.Sequential(Direction(), nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
    step = 0
    try:
        while step < args.steps:
            for rows, wanted in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(rows), wanted)
                loss.backward()
                print(f"step {step} loss {loss.item():.6f}")
                optimizer.step()
                scheduler.step()
                step += 1
                if step == args.steps:
                    break
    finally:
        if args.hash:
            print("weights", weights_hash(model))


if __name__ == "__main__":
    main()
