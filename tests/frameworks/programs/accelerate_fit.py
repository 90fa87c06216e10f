"""A loop of its own on Accelerate. python accelerate_fit.py CONFIGURATION [BAD BATCH | - [callback]]"""

import hashlib
import sys

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 4


def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def note_digest(model):
    """After every step: what the weights are when a later one is stopped."""
    with open("digests.txt", "a") as f:
        f.write(digest(model) + "\n")


class Rows(Dataset):
    def __init__(self, bad):
        self.rows = torch.randn(48, 6)
        if bad is not None:
            self.rows[bad * SIZE + 2] = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"x": self.rows[i], "y": i % 3}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x / x.norm(dim=1, keepdim=True))


CONFIGURATIONS = {
    "plain": ({}, 0.0),
    "accumulating": ({"gradient_accumulation_steps": 3}, 0.5),
    "bf16": ({"mixed_precision": "bf16"}, 0.5),
}


def train(name, bad, callback):
    set_seed(3)
    torch.set_num_threads(1)
    options, clip = CONFIGURATIONS[name]
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, **options)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    loader = DataLoader(Rows(bad), SIZE, shuffle=bad is None)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if callback:
        from finitude.integrations.accelerate import watch

        handle = watch(accelerator, report="report.json")
    step = 0
    try:
        for epoch in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
                    accelerator.backward(loss)
                    if clip and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                print(name, step, f"{loss.item():.6f}", flush=True)
                note_digest(model)
                step += 1
    finally:
        if callback:
            handle.__exit__(*sys.exc_info())
        print(name, "batches", step, "weights", digest(model), flush=True)


if __name__ == "__main__":
    for configuration in sys.argv[1].split(","):
        train(configuration, int(sys.argv[2]) if sys.argv[2:3] not in ([], ["-"]) else None, sys.argv[3:] == ["callback"])
