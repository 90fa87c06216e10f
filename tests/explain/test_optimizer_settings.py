"""A birth inside the optimizer: which parameter it writes, in which group, and how that group is set."""

import pytest

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


def test_parameter_group_and_settings_are_reported(tmp_path):
    alarm = bad_step(
        tmp_path, '"eps": 0.0', "(head(body(torch.randn(8, 6))) * 0).sum() + body(torch.randn(8, 6)).sum()"
    )
    assert alarm["sink"] == {"kind": "parameter", "name": "head.weight"}  # both modules have a weight
    assert alarm["births"][0]["phase"] == "optimizer" and alarm["births"][0]["name"] == "head.weight"
    text = alarm["cause"]["text"]
    assert (
        alarm["cause"]["class"] == "optimizer-arithmetic"
        and "parameter group 1 of 2" in text
        and "eps 0" in text
        and "lr 0.002" in text
    ), text


def test_a_decay_of_one_is_named(tmp_path):
    which = "betas[1]"  # a first one of 1 ends in an exception of Python's
    alarm = bad_step(tmp_path, '"betas": (0.9, 1.0)')
    assert f"{which} is 1, so that the bias correction" in alarm["cause"]["text"], alarm["cause"]
    assert alarm["fix"]["text"] == f"set {which} of parameter group 1 below 1" and not alarm["fix"]["verified"]


def test_good_settings_are_silent(tmp_path):
    run(tmp_path, SCRIPT.replace("SETTING", '"betas": (0.9, 0.99)').replace("LOSS", LOSS)).assert_silent()


GROWN = """
import torch
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
model = torch.nn.Linear(8, 1)
opt = torch.optim.OPTIMIZER
for group in opt.param_groups:
    group.update(SETTING)
for step in range(400):
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
GROW = {
    "a rate": ("SGD(model.parameters(), lr=1.2)", "{}", "learning-rate", "lower the learning rate"),
    "a negative decay": (
        "SGD(model.parameters(), lr=0.1)",
        "{'weight_decay': -30.0}",
        "optimizer-arithmetic",
        "set weight_decay to 0 or above",
    ),
    "momentum beyond 1": (
        "SGD(model.parameters(), lr=0.1)",
        "{'momentum': 2.0}",
        "optimizer-arithmetic",
        "set momentum below 1",
    ),
    "a rate below zero": (
        "SGD(model.parameters(), lr=0.1)",
        "{'lr': -0.5}",
        "learning-rate",
        "set lr to 0 or above",
    ),
    "a rate below zero, with momentum": (
        "SGD(model.parameters(), lr=0.1, momentum=0.9)",
        "{'lr': torch.tensor(-0.3)}",
        "learning-rate",
        "set lr to 0 or above",
    ),
    "decay and rate": (
        "AdamW(model.parameters(), lr=0.1)",
        "{'weight_decay': 50.0}",
        "learning-rate",
        "less than 2 / lr",
    ),
    "decay of the gradient": (
        "SGD(model.parameters(), lr=0.1)",
        "{'weight_decay': 30.0}",
        "learning-rate",
        "less than 2 / lr",
    ),
    "usual decay and momentum": (
        "SGD(model.parameters(), lr=1.2)",
        "{'weight_decay': 0.01, 'momentum': 0.9}",
        "learning-rate",
        "lower the learning rate",
    ),
}


@pytest.mark.parametrize("optimizer, setting, cause, fix", GROW.values(), ids=GROW)
def test_what_makes_the_weights_grow(tmp_path, optimizer, setting, cause, fix):
    """A setting that would do so at any learning rate is no matter of the learning rate."""
    alarm = run(tmp_path, GROWN.replace("OPTIMIZER", optimizer).replace("SETTING", setting)).alarms[0]
    assert alarm["cause"]["class"] == cause and fix in alarm["fix"]["text"], (alarm["cause"], alarm["fix"])


SCHEDULED = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.SCHEDULER
for i in range(6):
    if i == 3:
        state = sched.state_dict()
        state.update(STATE)
        sched.load_state_dict(state)
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
"""
BAD_SCHEDULES = {
    "base rates": ("LambdaLR(opt, lambda e: 1 / (1 + e))", '{"base_lrs": [float("nan")]}', "base_lrs of LambdaLR"),
    "factor": ("ExponentialLR(opt, 0.9)", '{"gamma": float("nan")}', "gamma of ExponentialLR"),
}


@pytest.mark.parametrize("scheduler, state, where", BAD_SCHEDULES.values(), ids=BAD_SCHEDULES)
def test_state_of_a_scheduler_is_no_division_of_the_schedule(tmp_path, scheduler, state, where):
    got = run(tmp_path, SCHEDULED.replace("SCHEDULER", scheduler).replace("STATE", state))
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == "learning-rate" and f"{where} holds nan" in alarm["cause"]["text"], got.text()
    assert where in alarm["fix"]["text"] and "warm-up" not in alarm["fix"]["text"], got.text()
