"""Infinities of the data that the program knows of and drops: the operation that made damage of them is the birth."""

import pytest

from helpers import run

PROGRAM = """
import torch
torch.manual_seed(1)
limit = torch.tensor([1.0, 2.0, float("inf"), 0.5])
scale = torch.nn.Parameter(torch.ones(4))
opt = torch.optim.SGD([scale], lr=0.01)
for step in range(4):
    d = torch.rand(4)
    BODY
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
CHOSEN = """reach = (limit * scale).square() - d
    used = torch.where(torch.isfinite(limit), reach, torch.ones_like(reach))
    loss = (used - 0.3).square().sum()"""
HIDDEN = """share = torch.tanh(limit * scale)
    loss = torch.where(torch.isinf(limit), torch.zeros_like(d), (d - share).square()).sum()"""
UNKNOWN = """share = torch.tanh(limit * scale)
    loss = (d - share).square().sum()"""


@pytest.mark.parametrize("body", [CHOSEN, HIDDEN], ids=["chosen away", "hidden by an activation"])
def test_what_the_program_asks_about_is_meant(tmp_path, body):
    got = run(tmp_path, PROGRAM.replace("BODY", body))
    alarm = got.the_alarm()
    assert (alarm["cause"]["class"], alarm["births"][0]["phase"]) == ("zero-times-infinity", "backward"), got.text()
    assert "limit * scale" in alarm["births"][0]["source"] and alarm["fix"]["verified"], got.text()
    assert "torch.where" in alarm["fix"]["text"], alarm["fix"]


def test_infinity_unknown_to_the_program_is_bad_data(tmp_path):
    got = run(tmp_path, PROGRAM.replace("BODY", UNKNOWN))
    assert got.the_alarm()["cause"]["class"] == "bad-data", got.text()


# One row of the data set in three has no upper bound; the loader stacks rows to batches.
STACKED = """
import torch
torch.manual_seed(1)

class Bounds(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.high = torch.rand(12, 4), torch.where(torch.arange(12) % 3 == 1, float("inf"), 2.0)
    def __len__(self): return 12
    def __getitem__(self, i): return self.x[i], self.high[i]

layer = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(layer.parameters(), lr=0.01)
for x, high in torch.utils.data.DataLoader(Bounds(), batch_size=6):
    over = (high - layer(x).squeeze(1)).square()
    KEPT
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
KEPT = {
    True: "loss = torch.where(torch.isinf(high), torch.zeros_like(over), over).mean()",
    False: "loss = over.mean()",
}


@pytest.mark.parametrize("level", ["gate", "tape"])
@pytest.mark.parametrize("known", KEPT)
def test_open_bounds_among_stacked_samples(tmp_path, level, known):
    alarm = run(tmp_path, STACKED.replace("KEPT", KEPT[known]), "--level", level).the_alarm()
    assert alarm["cause"]["class"] == ("zero-times-infinity" if known else "bad-data"), alarm["cause"]
    assert (alarm["births"][0]["phase"] == "backward") == known, alarm["births"][0]
