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


# Ones or zeros with one infinity look like a mask; what is multiplied and added up is none.
PRODUCTS = """
import torch
torch.manual_seed(1)
data = torch.ones(24, 4)
data[13, 1] = float("inf")
norm = torch.nn.BatchNorm1d(4).eval()
norm.running_mean[2] = BOUND
model = torch.nn.Sequential(norm, torch.nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    x = data[step * 6 : step * 6 + 6] if LOOK else torch.randn(6, 4)
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_infinity_among_ones_is_data_where_it_is_multiplied(tmp_path):
    got = run(tmp_path, PRODUCTS.replace("BOUND", "0.0").replace("LOOK", "True"))
    alarm = got.the_alarm()
    assert (alarm["cause"]["class"], alarm["step"]) == ("bad-data", 2) and alarm["fix"]["verified"], got.text()
    assert "the batch already holds 1 infinite value at sample 1" in alarm["cause"]["text"], got.text()


def test_batch_norm_in_eval_mode_writes_no_statistic(tmp_path):
    got = run(tmp_path, PRODUCTS.replace("BOUND", 'float("inf")').replace("LOOK", "False"))
    alarm = got.the_alarm()
    assert "running_mean[2] = " in alarm["births"][0]["source"], got.text()
    assert "into the buffer 0.running_mean" in alarm["cause"]["text"], got.text()
