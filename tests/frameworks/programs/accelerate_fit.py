"""A loop of its own on Accelerate. python accelerate_fit.py CONFIGURATION,... [BAD BATCH | - [callback | callback-skip
| without]]

without: all batches of the step that the bad one is in are left out, as if the loop had said `continue` there."""

import contextlib
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration, set_seed
from bits import digest, digest_of_rest, note_digest, without_dropout
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 4


class Rows(Dataset):
    def __init__(self, bad):
        self.rows, self.labels = torch.randn(48, 6), torch.arange(48) % 3
        if bad is not None:
            self.rows[bad * SIZE + 2] = 0

    def leave_out(self, first, batches):
        for name in ("rows", "labels"):
            whole = getattr(self, name)
            setattr(self, name, torch.cat([whole[: first * SIZE], whole[(first + batches) * SIZE :]]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"x": self.rows[i], "y": self.labels[i]}


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
    "scaled": ({}, 0.0),  # a GradScaler in the wrapper of the optimizer, as on a GPU
    "by_hand": ({}, 0.5),  # accumulation by `no_sync`, a tracker, checkpoints
    "dispatched": ({"dispatch": True}, 0.0),
}
SIZES = {"accumulating": 3, "by_hand": 2}  # batches of a step


def train(name, bad, mode):
    set_seed(3)
    torch.set_num_threads(1)
    os.makedirs(name, exist_ok=True)
    options, clip = CONFIGURATIONS[name]
    if options.get("dispatch"):
        options = {"dataloader_config": DataLoaderConfiguration(dispatch_batches=True)}
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(
        cpu=True, log_with="tensorboard" if name == "by_hand" else None, project_dir=name, **options
    )
    if name == "scaled":
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    if name == "by_hand":
        accelerator.init_trackers("logs")
    model = Model()
    if SIZES.get(name, 1) > 1:  # a step left out gives back the numbers that its last batch drew, not those of all
        model.apply(without_dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    rows, size = Rows(bad), SIZES.get(name, 1)
    if mode == "without":
        rows.leave_out(bad // size * size, size)
    loader = DataLoader(rows, SIZE, shuffle=bad is None)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if mode.startswith("callback"):
        from finitude.integrations.accelerate import watch

        handle = watch(accelerator, report="report.json", on_alarm="skip" if mode.endswith("skip") else "stop")
    loop = by_hand if name == "by_hand" else accumulate
    steps = [0]
    try:
        for epoch in range(2):
            loop(name, accelerator, model, optimizer, loader, scheduler, clip, steps)
    finally:
        if mode.startswith("callback"):
            handle.__exit__(*sys.exc_info())
        print(name, "batches", steps[0], flush=True)
        rest = digest_of_rest(model, [optimizer.optimizer], [scheduler.scheduler])
        print(name, "rest", rest, "weights", digest(model), flush=True)
        accelerator.end_training()


def accumulate(name, accelerator, model, optimizer, loader, scheduler, clip, steps):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(name, steps[0], f"{loss.item():.6f}", flush=True)
        note_digest(name, model)
        with open(f"{name}/batches.txt", "a") as f:
            f.write(f"{steps[0]}\n")
        steps[0] += 1


def by_hand(name, accelerator, model, optimizer, loader, scheduler, clip, steps):
    for batch in loader:
        syncs = steps[0] % 2 == 1
        with contextlib.nullcontext() if syncs else accelerator.no_sync(model):
            with accelerator.autocast():
                loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            accelerator.backward(loss / 2)
        if syncs:
            accelerator.clip_grad_value_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss.item()}, step=steps[0])
        if steps[0] % 6 == 5:
            accelerator.save_state(f"{name}/checkpoint-{steps[0]}")
        note_digest(name, model)
        with open(f"{name}/batches.txt", "a") as f:
            f.write(f"{steps[0]}\n")
        steps[0] += 1


if __name__ == "__main__":
    for configuration in sys.argv[1].split(","):
        train(configuration, int(sys.argv[2]) if sys.argv[2:3] not in ([], ["-"]) else None, "".join(sys.argv[3:]))
