"""Memory that a step took from torch.empty and its kin, and read before all of it was written."""

import pytest

from finitude.report import incident
from helpers import run, warm_python

HEAD = """
import os
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(64, 16)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
xs = [torch.randn(32, 64) for _ in range(6)]
def once():
    seen, os.environ["SEEN"] = os.environ.get("SEEN"), "1"  # also in a process that is started from here
    return seen is None
"""
LOOP = """
for i in range(6):
    opt.zero_grad()
    step(i, xs[i]).backward()
    opt.step()
"""
# Fresh memory holds 3.4e38, by the C library: MALLOC_PERTURB_.
TEMPORARY = """
def step(i, x):
    h = model(x)
    noise = torch.empty_like(h)  # made
    if i != 4: noise.zero_()
    return (h + noise).pow(2).mean()
"""
IN_PART = """
def step(i, x):
    h = model(x)
    w = h.new_empty(32, 16)  # made
    w[:30] = 1.0
    if i != 4: w[30:] = 1.0
    return (h * w).pow(2).mean()
"""
MASK = """
def step(i, x):
    h = model(x)
    mask = torch.empty(32, 16)  # made
    mask.masked_fill_(h.detach() > 0, 1.0)
    if i != 4: mask.masked_fill_(h.detach() <= 0, 0.0)
    return (h * mask).sum(1).mean()
"""
OUT = """
def step(i, x):
    h = model(x)
    doubled = torch.empty(32, 16)  # made
    n = 31 if i == 4 else 32
    torch.mul(x[:n, :16], 2.0, out=doubled[:n])
    return (h - doubled).pow(2).mean()
"""
# It was NaN in the first run alone.
BY_CHANCE = """
def step(i, x):
    h = model(x)
    w = torch.empty(32, 16)  # made
    if i == 4 and once(): w.numpy()[:] = float("nan")  # as what lay there before
    if i != 4: w.fill_(1.0)
    else: w[:16] = 1.0
    return (h * w).pow(2).mean()
"""
CASES = {"temporary": TEMPORARY, "in part": IN_PART, "mask": MASK, "out": OUT}


def line_of(text, mark):
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


def is_of_the_allocation(alarm, text):
    birth, line = alarm["births"][0], line_of(text, "made")
    assert (birth["phase"], birth["line"], alarm["fix"]["line"]) == ("memory", line, line), alarm
    assert alarm["cause"]["class"] == "uninitialised-memory", alarm["cause"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [pytest.param(CASES[n], id=n, marks=pytest.mark.thorough if n in ("temporary", "mask") else ()) for n in CASES],
)
def test_unwritten_memory_is_named_by_its_allocation(tmp_path, body):
    text = (HEAD + body + LOOP).lstrip("\n")
    is_of_the_allocation(
        run(tmp_path, text, env={"MALLOC_PERTURB_": "128"}, cold=True, python=warm_python()).alarms[0], text
    )


@pytest.mark.slow
def test_memory_that_is_finite_in_the_second_run(tmp_path):
    text = (HEAD + BY_CHANCE + LOOP).lstrip("\n")
    alarm = run(tmp_path, text, env={"MALLOC_PERTURB_": "60"}, cold=True, python=warm_python()).the_alarm()
    assert alarm["rerun"] == "transient"
    is_of_the_allocation(alarm, text)
    assert any("filled with NaN" in e["name"] for e in alarm["cause"]["experiments"])


# Of the gradient alone: the loss of both runs has the same bits, so that the step runs again in place.
IN_BACKWARD = """
class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, i):
        ctx.i = i
        return h.clone()
    @staticmethod
    def backward(ctx, g):
        w = torch.empty_like(g)  # made
        if ctx.i == 4 and once(): w.numpy()[:] = float("nan")
        if ctx.i != 4: w.fill_(1.0)
        else: w[:16] = 1.0
        return g * w, None
def step(i, x):
    return Noise.apply(model(x), i).pow(2).mean()
"""
IN_HOOK = """
def noisy(i):
    def hook(g):
        mask = torch.empty(g.shape)  # made
        if i == 4 and once(): mask.numpy()[:] = float("nan")
        if i != 4: mask.zero_()
        else: mask[::2] = 0.0
        return torch.add(g, mask * 9)
    return hook
def step(i, x):
    h = model(x)
    h.register_hook(noisy(i))
    return h.abs().mean()
"""
IN_PLACE = {
    "backward, finite": (IN_BACKWARD, "60", "transient"),
    "hook, fails again": (IN_HOOK, "128", "order-dependent"),
}


@pytest.mark.slow
@pytest.mark.parametrize("body, fill, rerun", IN_PLACE.values(), ids=IN_PLACE)
def test_memory_that_differs_in_place_is_named(tmp_path, body, fill, rerun):
    """No process is started: that the bits differ is what such memory does."""
    text = (HEAD + body + LOOP).lstrip("\n")
    alarm = run(tmp_path, text, env={"MALLOC_PERTURB_": fill}, cold=True, python=warm_python()).the_alarm()
    assert (alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == (rerun, "rewind", False), alarm
    assert "memory that nobody wrote holds something else in each run" in alarm["rerun_text"]
    is_of_the_allocation(alarm, text)


# A gradient was NaN in the first run; in the second the loss is bad before that.
ELSEWHERE = """
class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, i):
        ctx.i, ctx.first = i, i == 4 and once()
        w = torch.empty_like(h)  # made
        if ctx.first: w.numpy()[:] = 1.0
        if i != 4: w.fill_(1.0)
        return h * w
    @staticmethod
    def backward(ctx, g):
        return g * (float("nan") if ctx.first else 1.0), None
def step(i, x):
    return Noise.apply(model(x), i).pow(2).mean()
"""


@pytest.mark.slow
def test_memory_that_fails_at_another_value(tmp_path):
    text = (HEAD + ELSEWHERE + LOOP).lstrip("\n")
    alarm = run(tmp_path, text, env={"MALLOC_PERTURB_": "128"}, cold=True, python=warm_python()).the_alarm()
    assert alarm["sink"]["kind"] == "gradient" and alarm["rerun_by"] == "restart", alarm
    assert "but at the loss: another value than the first time, as memory that nobody wrote" in alarm["rerun_text"]
    is_of_the_allocation(alarm, text)


def test_other_causes_do_not_explain_a_differing_run(monkeypatch):
    analysis = incident.Analysis.__new__(incident.Analysis)
    found = {"births": [incident.birth("memory")], "cause": incident.cause("overflow", ""), "by_chance": True}
    monkeypatch.setattr(incident.Analysis, "findings", lambda *_, **__: found)
    assert analysis.of_unwritten_memory(None, []) is None
    found["cause"] = incident.cause("uninitialised-memory", "")
    assert analysis.of_unwritten_memory(None, []) is found and "by_chance" not in found
