"""Values of the program that die inside the watch run its code: a destructor may step an optimizer or look at a loss,
and finds everything as it would between two steps."""

import pytest

import helpers
from helpers import training

STEPS = """
import gc
dead = []
class Steps:
    '''Steps an optimizer as it dies.'''
    def __init__(self, opt, most=3):
        self.opt, self.most = opt, most
    def __del__(self):
        if len(dead) < self.most:
            dead.append(self)
            self.opt.step()
class Noted(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["note"] = Steps(self)
def digest():
    return float(sum(p.detach().double().sum() for p in model.parameters())), len(dead)
"""

# What the step has replaced is held by the undo copy alone, and dies with it.
COPY = """
opt = Noted(model.parameters(), lr=0.01)
for x in batches[:4]:
    opt.zero_grad(); loss_of(x).backward(); opt.step()
print(digest())
"""

# The first optimizer goes with its undo copy, as its step has raised; it is forgotten as the last one is met.
GONE = """
class Fails(torch.optim.SGD):
    def step(self, closure=None):
        self.param_groups[0]["note"] = None
        raise ValueError
first = Fails(model.parameters(), lr=0.01)
second, third = torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.SGD(model.parameters(), lr=0.01)
loss_of(batches[0]).backward()
first.param_groups[0]["note"] = Steps(third, most=1)
try:
    first.step()
except ValueError:
    pass
second.step(); third.step()
del first
gc.collect()
torch.optim.SGD(model.parameters(), lr=0.01).step()
print(digest())
"""


@pytest.mark.parametrize("loop", [COPY, GONE], ids=["copy", "gone"])
def test_destructor_that_steps_finds_whole_lists(tmp_path, loop):
    got = training(tmp_path, STEPS + loop, "--undo-mb", "8")
    got.assert_silent()
    assert got.out == helpers.plain(tmp_path, "train.py").out, got.text()


UNDONE = """
class Ruins(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        if self.param_groups[0]["ruins"]:
            self.param_groups[0].update(ruins=False, note=Steps(self, most=1))
            with torch.no_grad():
                model.weight.fill_(NAN)
opt = Ruins(model.parameters(), lr=0.01)
opt.param_groups[0].update(ruins=False, note=None)
for i, x in enumerate(batches[:4]):
    opt.zero_grad(); loss_of(x).backward()
    opt.param_groups[0]["ruins"] = i == 2
    opt.step()
print(len(dead), finite(), opt.param_groups[0]["note"])
"""


def test_destructor_that_steps_while_a_step_is_undone(tmp_path):
    got = training(tmp_path, STEPS + UNDONE, "--undo-mb", "8", "--on-alarm", "skip")
    assert (got.code, got.out) == (0, "1 True None\n"), got.text()
    assert got.the_alarm()["action"] == "the step was undone", got.text()


LOOKS = """
class Looks:
    def __del__(self):
        torch.isnan(bad)
class Held(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.looks = Looks()
        return x * NAN
    @staticmethod
    def backward(ctx, g):
        return g * NAN
for i, x in enumerate(batches[:4]):
    opt.zero_grad()
    loss = loss_of(x)
    if i == 1:
        bad = loss * NAN
        loss = Held.apply(loss)
        copy = loss.detach()
        del loss
        continue
    loss.backward()
    opt.step()
print("ended", finite())
"""


def test_destructor_that_looks_at_a_loss_ends(tmp_path):
    got = training(tmp_path, LOOKS, "--level", "trace")
    assert (got.code, got.out) == (0, "ended True\n"), got.text()
