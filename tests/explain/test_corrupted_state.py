"""Optimizer state that a checkpoint or the program made impossible, and weights that the program changed itself: not the
optimizer's arithmetic."""

import pytest
import torch  # noqa: F401  its libraries

from helpers import run

LOADED = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(6, 3)
x, y = torch.randn(32, 6), torch.randn(32, 3)
CLASS
opt = OPTIMIZER
def train(n):
    for _ in range(n):
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
train(3)
saved = opt.state_dict()
saved["state"][0]["KEY"].view(-1)[7:8] = VALUE
opt.load_state_dict(saved)  # here
train(3)
"""
OWN_AVERAGE = """
class Signed(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            average = self.state[p].setdefault("exp_avg_sq", torch.zeros_like(p))
            average.mul_(0.9).add_(p.grad)
            p.sub_(average, alpha=0.01)
"""
NEGATIVE = {
    "AdamW": ("torch.optim.AdamW(net.parameters())", "exp_avg_sq"),
    "Adam, foreach": ("torch.optim.Adam(net.parameters(), foreach=True)", "exp_avg_sq"),
    "AdamW, fused": ("torch.optim.AdamW(net.parameters(), fused=True)", "exp_avg_sq"),
    "RMSprop": ("torch.optim.RMSprop(net.parameters())", "square_avg"),
    "Adadelta": ("torch.optim.Adadelta(net.parameters())", "acc_delta"),
}


def loaded(folder, optimizer, key, value, of_class=""):
    return run(
        folder,
        LOADED.replace("CLASS", of_class).replace("OPTIMIZER", optimizer).replace("KEY", key).replace("VALUE", value),
    )


@pytest.mark.parametrize("optimizer, key", NEGATIVE.values(), ids=NEGATIVE)
def test_a_loaded_square_that_is_negative(tmp_path, optimizer, key):
    result = loaded(tmp_path, optimizer, key, "-0.25")
    alarm = result.the_alarm()
    text, birth = alarm["cause"]["text"], alarm["births"][0]
    assert alarm["cause"]["class"] == "corrupted-state" and f"{key} of weight at [1, 1] is -0.25: " in text, (
        result.text()
    )
    source = (tmp_path / "train.py").read_text().splitlines()
    assert birth["phase"] == "state" and birth["name"] == f"weight.{key}" and "# here" in source[birth["line"] - 1], (
        birth
    )
    assert "# here" in source[alarm["fix"]["line"] - 1]


SPOILT = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
opt = OPTIMIZER
def spoil():
    for state in opt.state.values():
        HOW  # here
for i in range(6):
    loss = net(torch.randn(4, 3)).square().mean()
    opt.zero_grad()
    loss.backward()
    if i == 3:
        spoil()
    opt.step()
"""
HOW = {
    "copied": ("RMSprop", "square_avg", 'state["square_avg"].copy_(-0.05 - state["square_avg"])'),
    "subtracted": ("Adam", "exp_avg_sq", 'state["exp_avg_sq"].sub_(1.0)'),
    "by index": ("Adam", "exp_avg_sq", 'state["exp_avg_sq"][0] = -1.0'),
}


@pytest.mark.parametrize("optimizer, key, how", HOW.values(), ids=HOW)
def test_state_that_the_program_itself_makes_negative(tmp_path, optimizer, key, how):
    text = SPOILT.replace("OPTIMIZER", f"torch.optim.{optimizer}(net.parameters(), lr=1e-3)").replace("HOW", how)
    result = run(tmp_path, text)
    alarm = result.the_alarm()
    birth, fix = alarm["births"][0], alarm["fix"]
    assert (alarm["step"], alarm["cause"]["class"]) == (3, "corrupted-state"), result.text()
    assert "outside of the optimizer's step" in alarm["cause"]["text"] and birth["op"], result.text()
    source = (tmp_path / "train.py").read_text().splitlines()
    assert "# here" in birth["source"] and "# here" in source[fix["line"] - 1], (birth, fix)
    assert birth["name"] == f"weight.{key}" and key in fix["text"] and "checkpoint" not in fix["text"], (birth, fix)
    assert f"written by step 3 of {optimizer}" in alarm["text"], result.text()


def test_negative_zero_and_other_classes_state_are_silent(tmp_path):
    for name, order in {
        "zero": ("torch.optim.AdamW(net.parameters())", "exp_avg_sq", "-0.0"),
        "own": ("Signed(net.parameters(), {})", "exp_avg_sq", "-0.25", OWN_AVERAGE),
    }.items():
        (tmp_path / name).mkdir()
        loaded(tmp_path / name, *order).assert_silent()


OWN_ADAM = """
class Mine(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
            state["m"].lerp_(p.grad, 0.1)
            state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            p.sub_(state["m"] / (ROOT + 1e-8), alpha=0.01)
"""
ROOTS = {
    "sqrt": '(state["v"] / 0.9).sqrt()',
    "pow": 'state["v"] ** 0.5',
    "foreach": 'torch._foreach_sqrt([state["v"]])[0]',
}


@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
def test_negative_loaded_state_under_root_is_corrupted_state(tmp_path, root):
    result = loaded(tmp_path, "Mine(net.parameters(), {})", "v", "-0.25", OWN_ADAM.replace("ROOT", root))
    alarm = result.the_alarm()
    text, birth = alarm["cause"]["text"], alarm["births"][0]
    assert alarm["cause"]["class"] == "corrupted-state" and "v of weight at [1, 1] is -0.25: " in text, result.text()
    source = (tmp_path / "train.py").read_text().splitlines()
    assert birth["phase"] == "state" and birth["name"] == "weight.v" and "# here" in source[birth["line"] - 1], birth


def test_root_made_negative_by_step_is_optimizer_arithmetic(tmp_path):
    signed = OWN_ADAM.replace("addcmul_(p.grad, p.grad, value=0.01)", "add_(p.grad, alpha=0.01)").replace(
        "ROOT", ROOTS["sqrt"]
    )
    result = run(
        tmp_path,
        LOADED.replace("CLASS", signed)
        .replace("OPTIMIZER", "Mine(net.parameters(), {})")
        .replace("KEY", "m")
        .replace("VALUE", "0.25"),
    )
    assert result.the_alarm()["cause"]["class"] == "optimizer-arithmetic", result.text()


MOVED = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
opt = OPTIMIZER
for step in range(12):
    loss = (net(torch.randn(8, 6)).pow(3) - 1).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        if step == 1: BESIDES
"""
PLAIN, SGD = "pass", "torch.optim.SGD(net.parameters(), lr=1e-3)"
GROUPS = '[{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 1e6}], lr=1e-3'
# optimizer, what the program does besides, class, what is said, what the fix is
MOVERS = {
    "in place": (
        SGD,
        "net[2].weight.mul_(1e30)",
        "corrupted-state",
        "no update of SGD does that",
        "besides the optimizer",
    ),
    "through NumPy": (SGD, "net[0].bias.numpy()[3] = 1e30", "corrupted-state", "0.bias moved by 1e+30", "besides"),
    "another tensor": (
        "torch.optim.Adam(net.parameters())",
        "net[2].weight.data = net[2].weight * 1e25",
        "corrupted-state",
        "no update of Adam does that",
        "besides the optimizer",
    ),
    "the state": (
        "torch.optim.Adam(net.parameters())",
        "[s['exp_avg'].mul_(1e30) for s in opt.state.values()]",
        "corrupted-state",
        "its state exp_avg of ",
        "begin with new state",
    ),
    "the rate of another group": (f"torch.optim.SGD({GROUPS})", PLAIN, "learning-rate", "group 1, 1e+06", "lower the"),
    "a rate with the usual decay": (
        "torch.optim.AdamW(net.parameters(), lr=1e7)",
        PLAIN,
        "learning-rate",
        "of 1e+07",
        "lower the learning rate",
    ),
    "a decay": (
        "torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=1e4)",
        PLAIN,
        "learning-rate",
        "weight_decay 10000",
        "set weight_decay",
    ),
}


@pytest.mark.parametrize("optimizer, besides, cause, said, advised", MOVERS.values(), ids=MOVERS)
def test_weight_changes_elsewhere_are_not_optimizer_arithmetic(tmp_path, optimizer, besides, cause, said, advised):
    got = run(tmp_path, MOVED.replace("OPTIMIZER", optimizer).replace("BESIDES", besides))
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == cause and said in alarm["cause"]["text"], got.text()
    assert advised in alarm["fix"]["text"] and "epsilon" not in alarm["fix"]["text"], got.text()


def test_a_count_of_steps_below_zero_is_written_on_by_a_step(tmp_path):
    text = LOADED.replace("CLASS", "").replace("OPTIMIZER", "torch.optim.Adam(net.parameters(), fused=True)")
    result = run(tmp_path, text.replace("KEY", "step").replace("[7:8] = VALUE", "[:] = -3.0"))
    alarm = result.the_alarm()
    assert alarm["cause"]["class"] == "corrupted-state" and "step of weight is -3: " in alarm["cause"]["text"]
    assert f"written by step {alarm['step']} of Adam" in alarm["text"] and "by the script" not in alarm["text"], (
        result.text()
    )


COPIED = """
import copy, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 3)
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3, centered=True)
def train(n):
    for _ in range(n):
        loss = net(torch.randn(8, 4)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
train(3)
saved = copy.deepcopy(opt.state_dict())
saved["state"][0]["grad_avg"][0, 2] = 5.0
opt.load_state_dict(saved)
train(3)
"""


def test_what_looks_at_loaded_state_is_no_operation_of_the_line_that_loaded_it(tmp_path):
    result = run(tmp_path, COPIED)
    experiments = result.the_alarm()["cause"]["experiments"]
    assert any("replaced by copies" in e["name"] for e in experiments), result.text()
    assert not any("aten::nonzero" in e["outcome"] for e in experiments), result.text()
