"""Since which step something grew that led to a bad step, and by how much a step."""

import json
import math
import random

import pytest
import torch

from finitude import _native
from finitude.program import optimizer_members
from helpers import run


def noisy(values):
    draw = random.Random(0)
    return [v * (0.9 + 0.2 * draw.random()) for v in values]


GROWN = {
    "level, then growth": (noisy([1.0] * 50 + [1.5**i for i in range(1, 31)]), 49, 1.5, False),
    "growth from the first step that is left": (noisy([1.02**i for i in range(400)]), 0, 1.02, True),
    "few steps": ([2.0, 2.0, 2.0, 20.0, 200.0, 2000.0, 20000.0], 2, 10.0, False),
    "after a step that was not finite": ([1.0, math.nan] + [1.0] * 10 + [3.0**i for i in range(1, 9)], 11, 3.0, False),
}


@pytest.mark.parametrize("values, at, factor, older", GROWN.values(), ids=GROWN)
def test_the_onset(values, at, factor, older):
    found = _native.growth_to_end(values)
    assert (
        found is not None
        and abs(found[0] - at) <= 2
        and found[1] == pytest.approx(factor, rel=0.1)
        and found[2] is older
    ), found


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0] * 30,
        noisy([1.0] * 100),
        [0.9**i for i in range(60)],
        [1.0, 1.0, 50.0],
        noisy([1.0] * 40) + [100.0],
        [math.nan] * 9,
        [2.0**i for i in range(20)] + [2.0 ** (20 - i) for i in range(20)],
    ],
)
def test_what_does_not_grow_has_none(values):
    assert _native.growth_to_end(values) is None


def test_a_ring_that_is_shorter_than_the_growth():
    steps = [(900 + i, 1.01**i, 2.0, 0.1) for i in range(500)]
    (onset,) = json.loads(_native.onsets(steps))
    assert (onset["quantity"], onset["step"], onset["at_most"], onset["steps"]) == ("loss", 900, True, 499)
    assert onset["factor_per_step"] == pytest.approx(1.01)
    assert "since step 900 or earlier" in json.loads(_native.onset(steps, "[]", "SGD"))["text"]


PROGRAM = """
import torch
torch.manual_seed(0)
x = torch.randn(64, 8)
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(300):
    if step == 60:
        opt.param_groups[0]["lr"] = RATE
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_rate_that_rose(tmp_path):
    result = run(tmp_path, PROGRAM.replace("RATE", "1.2"))
    alarm = result.alarms[0]
    onsets = {one["quantity"]: one for one in alarm["cause"]["onsets"]}
    assert alarm["cause"]["class"] == "learning-rate" and set(onsets) == {"loss", "gradient", "learning-rate"}, (
        result.text()
    )
    assert (
        abs(onsets["loss"]["step"] - 60) <= 3
        and onsets["learning-rate"]["step"] == 59
        and onsets["loss"]["factor_per_step"] > 3
    )
    assert f"the loss grew since step {onsets['loss']['step']}, by a factor of" in " ".join(result.err.split())


def test_weights_with_nothing_finite_have_no_growth():
    model = torch.nn.Linear(3, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    of = optimizer_members.parameters(opt), ["weight", "bias"], optimizer_members.magnitudes(opt)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
        model.bias.mul_(3)
        assert _native.weights_growth(*of) == (pytest.approx(3), "", "")
        model.bias.zero_()
        assert _native.weights_growth(*of) == (0, "", "")
        model.bias.fill_(float("inf"))
        assert _native.weights_growth(*of) == (None, "", "")


GROWN_300_FOLD = """
import torch
w = torch.nn.Parameter(torch.ones(4))
opt = torch.optim.SGD([w], lr=1.0)
for i in range(7):
    loss = -FACTOR * (w * w).sum() / 2 * (float("nan") if i == 6 else 1)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("factor, is_said", [("1.6", True), ("0.5", False)])
def test_growth_of_some_hundred_times_is_said(tmp_path, factor, is_said):
    result = run(tmp_path, GROWN_300_FOLD.replace("FACTOR", factor))
    alarm = result.the_alarm()
    assert 10 < alarm["growth"] < 1e3 and ("weights are finite but grown" in alarm["text"]) == is_said, result.text()
    assert ("Weights are clean" in " ".join(result.err.split())) != is_said, result.text()
