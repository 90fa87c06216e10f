"""A birth inside the optimizer: which parameter it writes, in which group, and how that group is set."""

from helpers import run

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
body, head = nn.Linear(6, 6), nn.Linear(6, 2)
opt = torch.optim.AdamW([{"params": body.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 2e-3, SETTING}])
for i in range(4):
    loss = LOSS
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
LOSS = "nn.functional.cross_entropy(head(torch.relu(body(torch.randn(8, 6)))), torch.randint(0, 2, (8,)))"


def bad_step(folder, setting, loss=LOSS):
    return run(folder, SCRIPT.replace("SETTING", setting).replace("LOSS", loss)).the_alarm()


def test_the_group_and_its_settings_are_told(tmp_path):
    alarm = bad_step(tmp_path, '"eps": 0.0', "(head(body(torch.randn(8, 6))) * 0).sum() + body(torch.randn(8, 6)).sum()")
    assert alarm["sink"] == {"kind": "parameter", "name": "head.weight"}  # both modules have a weight
    assert alarm["births"][0]["phase"] == "optimizer" and alarm["births"][0]["name"] == "head.weight"
    text = alarm["cause"]["text"]
    assert alarm["cause"]["class"] == "optimizer-arithmetic" and "parameter group 1 of 2" in text and "eps 0" in text and "lr 0.002" in text, text


def test_a_decay_of_one_is_named(tmp_path):
    which = "betas[1]"  # a first one of 1 ends in an exception of Python's
    alarm = bad_step(tmp_path, '"betas": (0.9, 1.0)')
    assert f"{which} is 1, so that the bias correction" in alarm["cause"]["text"], alarm["cause"]
    assert alarm["fix"]["text"] == f"set {which} of parameter group 1 below 1" and not alarm["fix"]["verified"]


def test_good_settings_are_silent(tmp_path):
    run(tmp_path, SCRIPT.replace("SETTING", '"betas": (0.9, 0.99)').replace("LOSS", LOSS)).assert_silent()
