"""Programs whose bad step is captured, changed or not, and put in place again."""

import json
import pathlib
import re

import helpers

# One sample of the data set makes the log fail when its turn comes. Before each forward pass the program prints all that
# a step depends on, so that the step put in place can be seen to be the recorded one.
LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)
X, Y = torch.rand(64, 6), torch.rand(64, 1)
X[17] = 0
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True, num_workers=WORKERS)
def show(x):
    state = torch.get_rng_state()
    drawn = torch.rand(1).item()
    torch.set_rng_state(state)
    held = [p.detach().double().sum().item() for p in [*model.parameters(), *model.buffers()]]
    held += [v.double().sum().item() for p in model.parameters() for _, v in sorted(optimizer.state.get(p, {}).items())]
    print("step", [x.sum().item(), drawn, optimizer.param_groups[0]["lr"], *held], flush=True)
def loss_of(x, y):
    show(x)
    weight = torch.log(x.sum(1, keepdim=True))
    return (weight * model(x) - y).pow(2).mean()
def train():
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(x, y).backward()
            optimizer.step()
            scheduler.step()
train()
"""
FIXED = ("torch.log(x.sum(1, keepdim=True))", "torch.log(x.sum(1, keepdim=True) + 0.01)")


def steps(text):
    return re.findall(r"^step \[.*\]$", text, re.M)


def without_rate(step):
    numbers = json.loads(step.removeprefix("step "))
    return numbers[:2] + numbers[3:]


class Captured:
    def __init__(self, folder, script, *options):
        self.folder, self.script = folder, script
        result = helpers.run(folder, script, *options)
        self.alarm = result.the_alarm()
        self.printed = steps(result.out)
        self.capsule = str(folder / self.alarm["capsule"])
        self.about = json.loads(pathlib.Path(self.capsule, "capsule.json").read_text())

    def with_changes(self, *changes, words=(), capsule=None):
        text = self.script
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        helpers.write_script(self.folder, text)
        return helpers.finitude(self.folder, "replay", capsule or self.capsule, "--with", "train.py", *words)
