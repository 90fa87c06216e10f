"""Optimizer state below zero is blamed for a bad step only where it was so before the step."""

import torch

import helpers
from finitude.program.tensor_stats import statistic
from finitude.report import impossible_state


def after_a_step(value):
    """Adam whose second moment holds `value`, and that moment."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    moment = optimizer.state[parameter]["exp_avg_sq"]
    moment[1] = value
    return optimizer, moment


def findings(op, output):
    birth = {"phase": "optimizer", "op": op, "outputs": [statistic("self", output)], "inputs": [], "rows": [1]}
    cause = {"class": "overflow", "confidence": "likely", "text": "", "experiments": []}
    return {"births": [birth], "cause": cause, "fix": None}


def test_operation_of_the_step_that_wrote_it_stays_the_birth():
    optimizer, moment = after_a_step(-torch.inf)
    found = findings("aten::addcmul_", moment)
    impossible_state.add_to(found, optimizer)
    assert [birth["op"] for birth in found["births"]] == ["aten::addcmul_"] and found["cause"]["class"] == "overflow"


def test_root_of_a_loaded_negative_moment_is_corrupt_state():
    optimizer, moment = after_a_step(-0.25)
    found = findings("aten::sqrt", moment.sqrt())
    impossible_state.add_to(found, optimizer)
    assert found["births"][0]["phase"] == "state" and found["cause"]["class"] == "corrupted-state"
    assert found["cause"]["confidence"] == "proven"
    assert [e["name"] for e in found["cause"]["experiments"] if e.get("confirms")] == [
        "exp_avg_sq of parameter 0, looked at"
    ]


def test_product_of_a_moment_that_was_infinite_is_corrupt_state():
    optimizer, moment = after_a_step(-torch.inf)
    found = findings("aten::div", torch.ones(3) / moment.sqrt())
    impossible_state.add_to(found, optimizer)
    assert found["births"][0]["name"].endswith("exp_avg_sq") and found["cause"]["class"] == "corrupted-state"


def test_mean_larger_than_its_squares_is_corrupt_state():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.RMSprop([parameter], centered=True)
    for factor in (1.0, -2.0, 1e-3, 1e-3):
        parameter.grad = torch.tensor([factor, 1.0, 0.0])
        optimizer.step()
    assert impossible_state.look(optimizer) is None  # the second gradient never changed: both are as large
    optimizer.state[parameter]["grad_avg"][0] = 3
    found = findings("aten::sqrt_", torch.tensor([1.0, torch.nan, 1.0]))
    impossible_state.add_to(found, optimizer)
    assert found["births"][0]["name"].endswith("grad_avg") and found["cause"]["class"] == "corrupted-state"
    assert "at [0] is 3, and square_avg there" in found["cause"]["text"] and "epsilon" not in found["fix"]["text"]


LOADED = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
saved = net.state_dict()
saved["1.running_var"][3] = -2.0
net.load_state_dict(saved)
net[1].eval()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    opt.zero_grad()
    net(torch.randn(16, 8)).pow(2).mean().backward()
    opt.step()
"""


def test_negative_running_variance_is_corrupt_state(tmp_path):
    got = helpers.run(tmp_path, LOADED)
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == "corrupted-state", got.text()
    assert "running_var of 1 at [3] is -2: it is a variance" in alarm["cause"]["text"], alarm["cause"]
    assert (alarm["births"][0]["phase"], alarm["births"][0]["name"]) == ("state", "1.running_var"), alarm["births"]
