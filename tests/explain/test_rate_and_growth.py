"""A learning rate or an optimizer that ruins the weights, and what is said of weights and gradients that are finite and
not sound."""

import pathlib
import re

import pytest
import torch  # noqa: F401  its libraries

from finitude import _native
from helpers import run

NET = """
import fractions, math
import numpy, torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 8))
opt = torch.optim.OPTIMIZER
data = torch.randn(12, 16, 12)
for i, x in enumerate(data):
    DATA
    mean, level = net(x).chunk(2, 1)
    LOSS
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
EXP = "loss = ((x[:, :4] - mean) * torch.exp(-level)).pow(2).mean() + level.mean()"
SATURATED = "loss = -torch.log(1 - torch.sigmoid(mean - level)).mean()"


def trained(folder, optimizer, loss=EXP, data="pass", *options):
    return run(folder, NET.replace("OPTIMIZER", optimizer).replace("LOSS", loss).replace("DATA", data), *options)


RUINED = {
    "Adam, an integer": ("Adam(net.parameters(), lr=10)", EXP, "10"),
    "AdamW, a fraction": ("AdamW(net.parameters(), lr=fractions.Fraction(40, 2), foreach=False)", EXP, "20"),
    "Adam, a tensor of integers": ("Adam(net.parameters(), lr=torch.tensor(15))", EXP, "15"),
    "momentum": ("SGD(net.parameters(), lr=numpy.int64(300), momentum=0.9)", EXP, "300"),
    "plain SGD": ("SGD(net.parameters(), lr=300)", EXP, "300"),
    "a logarithm of zero": ("Adam(net.parameters(), lr=20)", SATURATED, "20"),
}


@pytest.mark.parametrize("optimizer, loss, rate", RUINED.values(), ids=RUINED)
def test_learning_rate_ruining_weights_immediately_is_the_cause(tmp_path, optimizer, loss, rate):
    result = trained(tmp_path, optimizer, loss)
    alarm = result.alarms[0]
    assert alarm["step"] <= 3 and alarm["cause"]["class"] == "learning-rate", result.text()
    assert f"at a learning rate of {rate}" in alarm["cause"]["text"] and "too large" in alarm["cause"]["text"], alarm[
        "cause"
    ]
    assert not alarm["fix"]["verified"] and "learning rate" in alarm["fix"]["text"] and not alarm["fix"]["file"], alarm[
        "fix"
    ]
    tried = {e["name"]: e for e in alarm["cause"]["experiments"]}
    if "Adam" in optimizer or "momentum" in optimizer:
        assert tried["whole step, the last update taken back"]["confirms"] is True, tried
    said = " ".join(result.err.split())
    assert "Weights are clean" not in said and "weights are finite but grown" in alarm["text"], result.text()


def test_weights_that_an_applied_step_damages_were_finite(tmp_path):
    result = trained(tmp_path, "Adam(net.parameters(), lr=10)", EXP, "pass", "--on-alarm", "warn")
    alarm, said = result.alarms[0], " ".join(result.err.split())
    assert alarm["weights"] == "damaged" and "weights were finite but grown" in alarm["text"], result.text()
    assert "weights are finite" not in said and "Weights are damaged." in said, result.text()


def test_same_overflow_at_usual_rate_blames_the_data(tmp_path):
    result = trained(
        tmp_path,
        "Adam(net.parameters(), lr=1e-3)",
        "loss = (torch.exp(x.abs().amax(1)) * mean.mean(1)).mean() + level.mean()",
        "x = x * 100 if i == 4 else x",
    )
    alarm = result.the_alarm()
    assert alarm["step"] == 4 and alarm["cause"]["class"] == "exp-overflow", result.text()
    assert 1 <= alarm["growth"] < 10 and "Weights are clean." in " ".join(result.err.split()), result.text()


CLOSURE = """
import fractions, numpy, torch
net = torch.nn.Linear(3, 1)
opt = torch.optim.OPTIMIZER
x = torch.randn(8, 3)
def evaluate():
    opt.zero_grad()
    loss = (net(x) - 1).pow(2).mean()
    loss.backward()
    return loss
for i in range(3):
    STEP
"""
RATES = {
    "SGD(net.parameters(), lr=1)": 1,
    "SGD(net.parameters(), lr=True)": 1,
    "LBFGS(net.parameters(), lr=1, max_iter=1)": 1,
    "Adam(net.parameters(), lr=numpy.float32(0.5))": 0.5,
    "Adam(net.parameters(), lr=fractions.Fraction(1, 4), foreach=False)": 0.25,
    "Adam(net.parameters(), lr=torch.tensor(0.125))": 0.125,
    "Adam(net.parameters(), lr=torch.tensor(2))": 2,
}


@pytest.mark.parametrize("step", ["evaluate(); opt.step()", "opt.step(evaluate)"])
def test_rates_of_any_type_are_recorded(tmp_path, step):
    for number, (optimizer, rate) in enumerate(RATES.items()):
        if "LBFGS" in optimizer and "evaluate()" in step:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        run(
            folder, CLOSURE.replace("OPTIMIZER", optimizer).replace("STEP", step.replace("; ", "\n    "))
        ).assert_silent()
        (ring,) = pathlib.Path(folder).glob("finitude-runs/*/steps.ring")
        assert [s["lr"] for s in _native.read_ring(str(ring))["steps"]] == [rate] * 3, optimizer


GROWN = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=6.0)
x, y = torch.randn(64, 8), torch.randn(64, 1)
for i in range(20):
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_finite_but_grown_weights_are_not_called_clean(tmp_path):
    result = run(tmp_path, GROWN)
    alarm, said = result.alarms[0], " ".join(result.err.split())
    assert alarm["weights"] == "clean" and alarm["growth"] > 1e6 and alarm["cause"]["class"] == "learning-rate", (
        result.text()
    )
    assert re.search(r"weights are finite but grown \S+-fold since step 0 \(\S+: ", alarm["text"]), alarm["text"]
    assert "Weights are clean" not in said and "not in danger" not in said, said


SEARCHED = """
import torch
from torch import nn
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.LBFGS(m.parameters(), lr=RATE, max_iter=4)
x, y = torch.randn(64, 16), torch.randn(64, 1)
def closure():
    opt.zero_grad()
    loss = torch.exp(m(x) * SCALE).mean() + (m(x) - y).pow(2).mean()
    loss.backward()
    return loss
opt.step(closure)
"""


@pytest.mark.parametrize("rate, scale, cause", [("1000", "1", "learning-rate"), ("0.1", "1000", "exp-overflow")])
def test_rate_ruining_weights_in_first_step_is_found(tmp_path, rate, scale, cause):
    result = run(tmp_path, SEARCHED.replace("RATE", rate).replace("SCALE", scale))
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["cause"]["class"]) == (0, cause), result.text()
    text = "weights grew from 0.249919 to 67464.2 within this step at a learning rate of 1000"
    assert (text in alarm["cause"]["text"]) == (cause == "learning-rate"), alarm["cause"]


OWN = """
import torch
from torch import nn
class Scaled(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                KEEP
                size = state["size"]
                p.sub_(group["lr"] * p.grad / (size + 1e-12))
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True).sin()
net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))
nn.init.zeros_(net[4].weight)
opt = Scaled(net.parameters())
for i in range(20):
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
STALE = "if not state: state['size'] = p.grad.abs().mean()"
FRESH = "state['size'] = p.grad.abs().mean()"


def test_an_optimizer_that_divides_by_almost_nothing(tmp_path):
    result = run(tmp_path, OWN.replace("KEEP", STALE))
    alarm = result.alarms[0]
    text = alarm["cause"]["text"]
    assert alarm["cause"]["class"] == "optimizer-arithmetic" and re.search(
        r"its state size of \S+ is 0 where the gradient is not", text
    ), result.text()
    line = (tmp_path / "train.py").read_text().splitlines()[alarm["fix"]["line"] - 1]
    assert "/ (size + 1e-12)" in line and "size" in alarm["fix"]["text"] and not alarm["fix"]["verified"], alarm["fix"]


def test_optimizer_with_up_to_date_divisor_is_silent(tmp_path):
    run(tmp_path, OWN.replace("KEEP", FRESH)).assert_silent()


INSIDE = """
import torch
from torch import nn
class Own(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                UPDATE
torch.manual_seed(0)
words, head = nn.Embedding(20, 4), nn.Linear(4, 1)
opt = Own([*words.parameters(), *head.parameters()], {})
for i in range(3):
    loss = (head(words(torch.arange(5))) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
IN_PLACE = {
    "rsqrt_": "p.sub_(state['m'] * (state['v'] / 0.01).rsqrt_().add_(1e-8), alpha=0.01)",
    "reciprocal_": "p.sub_(state['m'] * (state['v'] / 0.01).sqrt_().reciprocal_().add_(1e-8), alpha=0.01)",
    "a list": "scale = [state['v'].sqrt()]\n                torch._foreach_reciprocal_(scale)\n     "
    "           p.sub_(state['m'] * scale[0], alpha=0.01)",
}


@pytest.mark.parametrize("update", IN_PLACE.values(), ids=IN_PLACE)
def test_in_place_birth_inside_optimizer_gets_verified_fix(tmp_path, update):
    result = run(tmp_path, INSIDE.replace("UPDATE", update))
    alarm = result.the_alarm()
    assert alarm["births"][0]["phase"] == "optimizer" and alarm["cause"]["class"] == "optimizer-arithmetic", (
        result.text()
    )
    assert alarm["fix"]["verified"] is True and "self" in alarm["fix"]["tried"], alarm["fix"]
    if "rsqrt_" in update:
        assert "before the root" in alarm["fix"]["text"] and re.search(
            r"\+.*\.clamp_\(min=\S+\)\.rsqrt_\(\)", alarm["fix"]["diff"]
        ), alarm["fix"]


CLIPPED = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)DTYPE
opt = torch.optim.OPTIMIZER
for i in range(5):
    loss = (net(torch.randn(4, 8)DTYPE) * SCALE).mean()
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
"""


@pytest.mark.parametrize(
    "optimizer, dtype, scale, moves",
    [
        ("SGD(net.parameters(), lr=1e-3)", "", 1e20, "no weight"),
        ("AdamW(net.parameters())", "", 1e20, "nothing but momentum"),
        ("SGD(net.parameters(), lr=1e-3)", ".half()", 5e4, "no weight"),
    ],
)
def test_overflowing_norm_is_reported_with_value_and_effect(tmp_path, optimizer, dtype, scale, moves):
    result = run(tmp_path, CLIPPED.replace("OPTIMIZER", optimizer).replace("DTYPE", dtype).replace("SCALE", str(scale)))
    result.assert_no_alarm()
    (advisory,) = result.advisories("clipping")
    text = advisory["text"]
    norm = float(re.search(r"in float64 it is (\S+);", text)[1])
    assert (
        scale / 2 < norm < 10 * scale
        and moves in text
        and "from step 0 on" in text
        and "in 5 steps in a row, 0 to 4" in text
    ), text
