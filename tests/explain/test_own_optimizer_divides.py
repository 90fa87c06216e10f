"""Optimizers of the program's own that divide by next to nothing: their line and the state that is small."""

import pytest

from helpers import run

NEWTON = """
import torch
torch.manual_seed(0)
class Newton(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                now = p.grad.square()
                KEEP
                p.sub_(group["lr"] * p.grad / h)
w = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
opt = Newton([w])
for step in range(6):
    x = torch.randn(16, 3)
    x[:, 2] *= 1e-11 if step < 5 else 1.0
    loss = (x @ w - x.sum(1)).pow(2).mean().exp() - 1
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
WAYS = {
    "get": "h = state['h'] = now if state.get('h') is None else 0.9 * state['h'] + 0.1 * now",
    "setdefault": "h = state.setdefault('h', now.clone()).mul_(0.9).add_(now, alpha=0.1)",
    "chained": "old = state.get('h'); h = state['h'] = now if old is None else old.lerp(now, 0.1)",
}


@pytest.mark.parametrize("keep", WAYS.values(), ids=WAYS)
def test_near_zero_state_of_largest_weight_is_reported(tmp_path, keep):
    got = run(tmp_path, NEWTON.replace("KEEP", keep))
    cause, fix = got.the_alarm()["cause"], got.the_alarm()["fix"]
    assert cause["class"] == "optimizer-arithmetic" and "its state h of w is " in cause["text"], got.text()
    line = (tmp_path / "train.py").read_text().splitlines()[fix["line"] - 1]
    assert line.strip() == 'p.sub_(group["lr"] * p.grad / h)' and "keep h away from 0" in fix["text"], fix


LOGARITHM = """
import torch
torch.manual_seed(0)
class Logarithmic(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4):
        super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                scale = p.grad.square()
                scale.log_()
                p.sub_(scale, alpha=group["lr"])
net = torch.nn.Linear(4, 2)
opt = Logarithmic(net.parameters())
for step in range(3):
    x = torch.randn(8, 4)
    x[:, 2] = 0
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()
"""


def test_a_logarithm_in_an_optimizer_has_no_denominator(tmp_path):
    got = run(tmp_path, LOGARITHM)
    cause, fix = got.the_alarm()["cause"], got.the_alarm()["fix"]
    assert "a logarithm of zero in aten::log_" in cause["text"] and "denominator" not in cause["text"], got.text()
    assert "logarithm" in fix["text"] and "denominator" not in fix["text"], fix


OVERFLOWS = """
import torch
torch.manual_seed(0)
class Scaled(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                v = self.state[p].setdefault("v", torch.zeros_like(p))
                p.sub_(p.grad / (v.sqrt() + 1e-20), alpha=group["lr"])
                v.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
opt = Scaled(net.parameters())
x = torch.randn(16, 4)
for step in range(4):
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()
"""


def test_an_overflow_in_the_step_after_that_is_no_matter_of_clipping(tmp_path):
    got = run(tmp_path, OVERFLOWS)
    cause, fix = got.the_alarm()["cause"], got.the_alarm()["fix"]
    assert got.the_alarm()["step"] == 1 and cause["class"] == "optimizer-arithmetic", got.text()
    assert "in 1 step, where learning rate x gradient is" in cause["text"] and "epsilon" in fix["text"], got.text()
    line = (tmp_path / "train.py").read_text().splitlines()[fix["line"] - 1]
    assert line.strip().startswith("p.sub_(p.grad / (v.sqrt()"), fix


REFRESHED = """
import torch
from torch import nn
class Scaled(torch.optim.Optimizer):
    kind = "KIND"
    def __init__(self, params, lr=1e-3):
        super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                v = s.setdefault("v", torch.zeros_like(p))
                UPDATE
torch.manual_seed(0)
x = torch.randn(2000, 16)
y = torch.sin(x[:, :1])
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
opt = Scaled(model.parameters())
for i in range(4):
    r = torch.randint(0, 2000, (64,))
    loss = ((model(x[r]) - y[r]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
DIVIDES = "p.addcdiv_(p.grad, v.sqrt().add_(1e-16), value=-1e-3)"
PLAIN = "p.sub_(p.grad.div(v.sqrt() + 1e-16).mul(1e-3))"
BRANCHED = f"""if self.kind == "addcdiv":
                    {DIVIDES}
                else:
                    {PLAIN}"""
UPDATES = {
    "first branch": (BRANCHED, "addcdiv", ""),
    "second branch": (BRANCHED, "plain", ""),
    "continues": (f'if self.kind == "addcdiv": {DIVIDES}; continue\n                {PLAIN}', "addcdiv", ""),
    "no branch": (PLAIN, "plain", PLAIN),
    "with a gradient": (f"if p.grad is not None: {PLAIN}", "plain", PLAIN),
    "state is NaN at once": (f"v.addcmul_(p.grad, p.grad, value=0.0)\n                {DIVIDES}", "", DIVIDES),
}


@pytest.mark.parametrize("update, kind, line", UPDATES.values(), ids=UPDATES)
def test_one_step_has_one_story_and_no_line_that_may_not_have_run(tmp_path, update, kind, line):
    got = run(tmp_path, REFRESHED.replace("UPDATE", update).replace("KIND", kind))
    first, *others = got.alarms
    assert first["step"] == 1 and first["cause"]["class"] == "optimizer-arithmetic", got.text()
    assert [a.get("repeat_of") for a in others] == [1] and others[0]["sink"]["kind"] == "parameter", got.text()
    assert got.err.count("born in forward") == 1 and "explained with the loss of this step" in got.err, got.text()
    error = next(text for text in got.err.splitlines() if "NonFiniteError: " in text)
    assert "(optimizer-arithmetic)" in error and "(learning-rate)" not in got.err, got.err
    text, fix = first["cause"]["text"], first["fix"]
    if line:
        at = (tmp_path / "train.py").read_text().splitlines()[fix["line"] - 1]
        assert line in at and "it divides at train.py:" in text, text
    else:
        assert "it divides at" not in text and not fix["line"], text
