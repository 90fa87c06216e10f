"""The capsule of a step that a second process ran again: what it begins with, and steps that torch's anomaly mode ended
in backward."""

import sys

import pytest

from helpers import finitude, run, training

LOADED = """
import os
EPS = float(os.environ.get("EPS", 0))
held = torch.randn(48, 4)
held[17] = 0
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 48
    def __getitem__(self, i): return held[i]
opt = torch.optim.Adam(model.parameters(), lr=0.01)
{guard}
for x in torch.utils.data.DataLoader(Rows(), 8):
    opt.zero_grad()
    loss = (((model(x)[:, :3] * x[:, :3]) ** 2).sum(1) + EPS).sqrt().mean()
    loss.backward()
    {check}
    opt.step()
"""
GUARDS = {
    "the script": ("", "if not torch.isfinite(model.weight.grad).all(): raise ValueError('gradient')"),
    "anomaly mode": ("torch.autograd.set_detect_anomaly(True)", "pass"),
}


@pytest.fixture(scope="module", params=GUARDS)
def ended(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    guard, check = GUARDS[request.param]
    return training(folder, LOADED.format(guard=guard, check=check), "--on-alarm", "stop"), request.param


def test_it_names_the_birth_in_backward(ended):
    got, by = ended
    alarm, birth = got.the_alarm(), got.the_alarm()["births"][0]
    assert (
        got.code == 1
        and ("ValueError: gradient" if by == "the script" else "returned nan values in its 0th output") in got.err
    )
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"], alarm["rerun_by"]) == (
        2,
        "gradient",
        "clean",
        "restart",
    ), got.text()
    assert (birth["phase"], birth["op"], birth["node"]) == (
        "backward",
        "aten::div",
        "SqrtBackward0",
    ) and ".sqrt()" in birth["source"]
    assert alarm["rerun_verified"] and alarm["cause"]["class"] == "domain-edge", alarm
    if by == "anomaly mode":
        assert alarm["sink"]["name"] == "output 0 of PowBackward0" and "anomaly mode" in alarm["text"], alarm


def test_capsule_replays_and_starts_after_the_previous_step(ended):
    got, _ = ended
    replayed = finitude(got.folder, "replay", got.the_alarm()["capsule"], "--step-through")
    assert replayed.code == 0 and "identical: " in replayed.out, replayed.text()
    assert "opt.step()" not in replayed.out and "Pow" not in replayed.err, replayed.out


def test_with_says_whether_it_is_fixed(ended):
    got, _ = ended
    capsule = got.the_alarm()["capsule"]
    same = finitude(got.folder, "replay", capsule, "--with", f"{sys.executable} train.py")
    assert same.code == 1 and "not fixed: the same birth  aten::div" in same.out, same.text()
    fixed = finitude(got.folder, "replay", capsule, "--with", f"EPS=1e-6 {sys.executable} train.py")
    assert fixed.code == 0 and fixed.out.startswith("fixed: "), fixed.text()
    assert "and so it is as step 2 of the program itself" in fixed.out, fixed.out


def test_anomaly_mode_under_raise_alarms_without_rerun(tmp_path):
    guard, check = GUARDS["anomaly mode"]
    got = training(tmp_path, LOADED.format(guard=guard, check=check), "--on-alarm", "raise")
    assert (got.the_alarm()["rerun"], got.the_alarm()["births"]) == ("not-run", []), got.text()


def test_with_several_optimizers_alarm_names_the_graphs_own(tmp_path):
    got = training(
        tmp_path,
        """
        other = nn.Linear(4, 3)
        first = torch.optim.SGD(other.parameters(), lr=0.1)
        torch.autograd.set_detect_anomaly(True)
        opt = torch.optim.AdamW(model.parameters(), lr=0.1)
        for i, x in enumerate(batches):
            first.zero_grad(); other(x).pow(2).mean().backward(); first.step()
            opt.zero_grad()
            (model(x) * (i != 3)).pow(2).sum(1).sqrt().mean().backward()
            opt.step()
    """,
        "--on-alarm",
        "stop",
    )
    alarm = got.the_alarm()
    assert (alarm["optimizer"], alarm["step"], alarm["births"][0]["node"]) == ("AdamW", 3, "SqrtBackward0"), got.text()


def test_a_derivative_by_autograd_grad_too(tmp_path):
    got = training(
        tmp_path,
        """
        torch.autograd.set_detect_anomaly(True)
        for i, x in enumerate(batches):
            x = x * (i != 3)
            x.requires_grad_()
            slope, = torch.autograd.grad(model(x).mul(x[:, :3]).norm(dim=1).pow(1.5).sqrt().sum(), x, create_graph=True)
            opt.zero_grad()
            slope.pow(2).mean().backward()
            opt.step()
    """,
        "--on-alarm",
        "stop",
    )
    alarm = got.the_alarm()
    assert (
        alarm["step"] == 3 and alarm["births"][0]["phase"] == "backward" and ".sqrt()" in alarm["births"][0]["source"]
    ), got.text()
    assert finitude(tmp_path, "replay", alarm["capsule"]).code == 0


# Sharpness-aware: an optimizer whose step lets another one step, after a closure that it calls twice. Only where it
# moved the weights to, a log fails.
AROUND = """
        class Around(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {"lr": 0.1})
                self.base, self.moved = torch.optim.SGD(self.param_groups, lr=0.1), False
            def step(self, closure):
                with torch.enable_grad(): closure()
                self.moved = True
                with torch.enable_grad(): closure()
                self.moved = False
                self.base.step()
        opt = Around(model.parameters())
        for i, x in enumerate(batches):
            def closure():
                opt.zero_grad()
                loss = torch.log(model(x).pow(2).sum(1) * (not (opt.moved and i == 3))).mean()
                loss.backward()
                return loss
            opt.step(closure)
"""


def test_a_step_inside_the_step_of_another_optimizer(tmp_path):
    got = training(tmp_path, AROUND, "--on-alarm", "stop")
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (alarm["optimizer"], alarm["step"], alarm["rerun_by"], birth["node"]) == (
        "SGD",
        3,
        "restart",
        "LogBackward0",
    ), got.text()
    assert "torch.log(" in birth["source"], birth
    assert alarm["cause"]["class"] == "log-of-zero", alarm["cause"]
    replayed = finitude(tmp_path, "replay", alarm["capsule"])
    assert replayed.code == 0 and "identical: " in replayed.out, replayed.text()


def test_anomaly_caught_by_the_script_is_an_advisory(tmp_path):
    got = training(
        tmp_path,
        """
        torch.autograd.set_detect_anomaly(True)
        for i, x in enumerate(batches):
            opt.zero_grad()
            try:
                (model(x) * (i not in (2, len(batches) - 1))).pow(2).sum(1).sqrt().mean().backward()
            except RuntimeError:
                continue
            opt.step()
    """,
        "--on-alarm",
        "stop",
    )
    assert got.code == 0 and not got.alarms and got.watched["handled_by_script"] == 2, got.text()
    assert [(a["kind"], a["text"]) for a in got.report["advisories"]] == 2 * [
        ("handled-by-script", "PowBackward0 gave NaN in backward, which anomaly mode ended; the script caught that")
    ], got.text()


# In deterministic mode torch fills new memory with NaN, as chance does elsewhere; Linear initialises it.
@pytest.mark.parametrize("mode", ["autograd.set_detect_anomaly", "use_deterministic_algorithms"])
def test_an_error_of_other_words_is_no_alarm(mode, tmp_path):
    got = run(
        tmp_path,
        f"""
        import torch
        torch.{mode}(True)
        model = torch.nn.Linear(4, 3)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        raise RuntimeError('returned nan values')
    """,
        "--on-alarm",
        "stop",
    )
    assert got.code == 1 and not got.alarms, got.text()


def test_anomaly_without_an_optimizer_is_an_alarm(tmp_path):
    got = run(
        tmp_path,
        """
        import torch
        torch.manual_seed(0)
        torch.autograd.set_detect_anomaly(True)
        w = torch.randn(3, 3, requires_grad=True)
        for i in range(6):
            (torch.randn(8, 3) @ w * (i != 4)).pow(2).sum(1).sqrt().mean().backward()
            with torch.no_grad(): w -= 0.01 * w.grad
            w.grad = None
    """,
        "--on-alarm",
        "stop",
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["name"], alarm["rerun"]) == (4, "output 0 of PowBackward0", "not-run"), (
        got.text()
    )
    assert alarm["weights"] == "clean" and "returned nan values" in got.err, got.text()


def test_command_that_does_not_train_is_reported_once(ended):
    got, _ = ended
    tried = finitude(got.folder, "replay", got.the_alarm()["capsule"], "--with", "false")
    assert tried.code == 4 and tried.out.startswith("undecided: ") and "watched" not in tried.err, tried.text()


@pytest.mark.thorough
def test_capsule_of_another_recorded_step_is_removed(tmp_path):
    """The first of two processes finds the step that had ruined the weights; what the second records is named by
    nobody."""
    got = run(
        tmp_path,
        """
import torch
from torch import nn
torch.manual_seed(11)
class Sharp(torch.optim.Optimizer):
    def __init__(self, params, rho=0.05):
        super().__init__(params, {"rho": rho})
        self.base = torch.optim.SGD(self.param_groups, lr=0.05, momentum=0.9)
        self.param_groups = self.base.param_groups
    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        held = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        moves = [p.grad * (0.05 / norm) for p in held]
        for p, move in zip(held, moves): p.add_(move)
        self.zero_grad()
        closure()
        for p, move in zip(held, moves): p.sub_(move)
        self.base.step()
        self.zero_grad()
        return loss
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
opt = Sharp(model.parameters())
x, weights = torch.randn(80, 4), torch.ones(80)
weights[48:56] = 0.0
for i in range(10):
    rows = slice(8 * i, 8 * i + 8)
    def closure():
        loss = (weights[rows] * torch.relu(1 - torch.sign(x[rows, 0]) * model(x[rows]).squeeze(1))).mean()
        loss.backward()
        return loss
    opt.step(closure)
""",
    )
    alarm = got.the_alarm()
    assert alarm["births"][0]["op"] == "aten::reciprocal", got.text()
    named = [alarm["capsule"]] if alarm["capsule"] else []
    assert [str(p) for p in tmp_path.glob("finitude-runs/*/step-*")] == named, got.text()


def test_restart_leaves_files_outside_the_working_directory_alone(tmp_path):
    """The ring of steps is open for writing, as a log of the program is, and lies in a directory that stays."""
    work = tmp_path / "work"
    work.mkdir()
    text = """
    batches = [torch.full((8, 4), 0.5) for _ in range(5)]
    while batches:  # popped: no step can be run again in place
        x = batches.pop()
        loss = (loss_of(x) - 1e3 * torch.tensor(0.0 if len(batches) == 2 else 1.0).log()).sqrt().abs()
        opt.zero_grad(); loss.backward(); opt.step()
    """
    runs = tmp_path / "runs"
    got = training(work, text, "--on-alarm", "warn", "--runs", str(runs))
    assert got.alarms and got.alarms[0]["rerun_by"] == "restart" and got.alarms[0]["capsule"], got.text()
    (run_directory,) = runs.iterdir()
    left = {path.name for path in run_directory.iterdir()}
    assert left >= {"steps.ring", "run.json", *(a["capsule"].rpartition("/")[2] for a in got.alarms if a["capsule"])}, (
        left
    )
    assert not got.watched["not_watched"], got.watched
