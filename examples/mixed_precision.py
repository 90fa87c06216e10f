"""A classifier under autocast: bfloat16, or float16 with a GradScaler (--dtype float16).

--fault: the loss is written out in the half precision that the model computes in, where 1 - p becomes exactly zero.
"""

import argparse
import contextlib
import hashlib

import torch
from torch import nn


class HandMade(nn.Module):
    """Binary cross-entropy from its definition."""

    def forward(self, logits, labels):
        p = torch.sigmoid(logits)
        rest = 1 - p
        return -(labels * torch.log(p) + (1 - labels) * torch.log(rest)).mean()


def make_batch(generator):
    points = torch.randn(32, 8, generator=generator) * 3
    return points, (points[:, :2].sum(dim=1, keepdim=True) > 0).float()


def weights_hash(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="store_true", help="write the loss out in half precision")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hash", action="store_true", help="print a hash of the weights at the end")
    args = parser.parse_args()

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(4)
    dtype = getattr(torch, args.dtype)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    criterion = HandMade() if args.fault else nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=args.dtype == "float16", growth_interval=10)
    exact = contextlib.nullcontext() if args.fault else torch.autocast("cpu", enabled=False)
    try:
        for step in range(args.steps):
            points, labels = make_batch(generator)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                logits = model(points)
                with exact:
                    loss = criterion(logits if args.fault else logits.float(), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            print(f"step {step} loss {loss.item():.6f} norm {norm.item():.4f} scale {scaler.get_scale():g}")
            scaler.step(optimizer)
            scaler.update()
    finally:
        if args.hash:
            print("weights", weights_hash(model))


if __name__ == "__main__":
    main()
