"""`finitude replay --with`: the state of every kind of optimizer is put in place whole, or not at all."""

import copy
import json
import shutil

import pytest
import torch

import helpers
from finitude.capsules.start_check import is_sound
from finitude.program import state_format
from inject_support import Captured, steps

# Its state holds lists of tensors, numbers and None; one bad sample, when its turn comes.
SEARCHES = """
import torch
torch.manual_seed(1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3)
X = torch.rand(40, 3)
Y = X.sum(1, keepdim=True)
BAD = X.clone()
BAD[7] = 0
for k in range(6):
    x = BAD if k == 3 else X
    def closure():
        optimizer.zero_grad()
        loss = ((model(x / x.norm(dim=1, keepdim=True)) - Y) ** 2).mean()
        loss.backward()
        return loss
    state = optimizer.state[model.weight]
    print("step", [k, *(d.sum().item() for d in state.get("old_dirs", []))], flush=True)
    optimizer.step(closure)
"""
CURED = ("x.norm(dim=1, keepdim=True)", "(x.norm(dim=1, keepdim=True) + 1e-6)")


def test_line_search_continues_from_its_lists(tmp_path):
    captured = Captured(tmp_path, SEARCHES)
    (described,) = captured.about["start"]["optimizers"]
    assert set(described["trees"]["weight"]) == {"al", "old_dirs", "old_stps", "ro"} and described["not_kept"] == []
    same = captured.with_changes()
    assert same.code == 1 and same.out.startswith("not fixed: the same birth  aten::div"), same.text()
    fixed = captured.with_changes(CURED)
    assert fixed.code == 0 and fixed.out.startswith("fixed"), fixed.text()


@pytest.mark.thorough
def test_its_first_step_too(tmp_path):
    captured = Captured(tmp_path, SEARCHES.replace("k == 3", "k == 0"))
    assert captured.alarm["step"] == 0
    same = captured.with_changes()
    assert same.code == 1 and "the same birth  aten::div" in same.out, same.text()
    fixed = captured.with_changes(CURED)
    assert fixed.code == 0 and fixed.out.startswith("fixed"), fixed.text()


OWN = """
import collections
import torch
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01, "betas": (0.5, 0.9)})
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            s = self.state[p]
            if not s:
                s["held"] = HELD
            p.sub_(p.grad, alpha=0.01)
torch.manual_seed(2)
w = torch.nn.Parameter(torch.rand(6))
optimizer = Own([w])
for i in range(6):
    x = torch.rand(4, 6)
    if i == 3:
        x[1] = 0
    optimizer.zero_grad()
    torch.log((x * w).sum(1)).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("held", "code"),
    [("({'a': (1, None, float('inf'))}, [torch.ones(2)])", 1), ("collections.deque([1])", 4)],
    ids=["kept", "not kept"],
)
def test_state_of_other_forms_is_kept_or_named(tmp_path, held, code):
    captured = Captured(tmp_path, OWN.replace("HELD", held))
    (described,) = captured.about["start"]["optimizers"]
    assert described["groups"] == [{"lr": 0.01, "betas": [0.5, 0.9]}]
    same = captured.with_changes()
    assert same.code == code, same.text()
    if code == 4:
        assert "does not hold all of the optimizer's state: w.held (deque)" in same.out, same.text()
    else:
        assert described["trees"]["w"]["held"] == {
            "tuple": [
                {"dict": [["a", {"tuple": [{"value": 1}, {"value": None}, {"float": "inf"}]}]]},
                {"list": [{"tensor": "state.w.held.1.0"}]},
            ]
        }


def test_other_memory_order_is_not_matched_on_tape():
    """That has the bytes of its memory; parameter.w is a name that it may have."""
    for tensor in (
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.rand(3, 2).t(),
        torch.rand(2, dtype=torch.complex64).conj(),
    ):
        tensors = state_format.Tensors()
        assert tensors.add("parameter.w", tensor) == "ordered.parameter.w" and torch.equal(tensors.files[0][2], tensor)
    assert state_format.Tensors().add("parameter.w", torch.rand(2, 3)) == "parameter.w"


TWO = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(4)
X = torch.rand(64, 6)
X[41] = 0
maker, judge = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
first = torch.optim.Adam(judge.parameters(), lr=0.01)
second = torch.optim.Adam(maker.parameters(), lr=0.01)
decay = torch.optim.lr_scheduler.ExponentialLR(second, 0.9)
for (x,) in DataLoader(TensorDataset(X), batch_size=4, shuffle=True):
    first.zero_grad()
    (judge(x).mean() - judge(maker(x).detach()).mean()).backward()
    first.step()
    second.zero_grad()
    (torch.log(x.sum(1)) * judge(maker(x))[:, 0]).mean().backward()
    second.step()
    decay.step()
"""
SCALED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(4)
X = torch.rand(64, 6)
X[41] = 0
model = nn.Linear(6, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
warm = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=40)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for i, (x,) in enumerate(DataLoader(TensorDataset(X), batch_size=4, shuffle=True)):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x).float()
    scaler.scale((torch.log(x.sum(1)) * out[:, 0]).mean() / 2).backward()
    if i % 2:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        warm.step()
"""


@pytest.mark.parametrize("script", [TWO, SCALED], ids=["two optimizers", "scaler, scheduler and micro-batches"])
def test_programs_of_several_parts(tmp_path, script):
    captured = Captured(tmp_path, script)
    same = captured.with_changes()
    assert same.code == 1 and same.out.startswith("not fixed: the same birth  aten::log"), same.text()
    fixed = captured.with_changes(("torch.log(x.sum(1))", "torch.log(x.sum(1) + 0.01)"))
    assert fixed.code == 0 and fixed.out.startswith("fixed: loss "), fixed.text()


# Both parts read each other's weights. The bad step is the first or the second of its iteration, and in between the
# other one steps.
RIVALS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(4)
X = torch.rand(40, 4)
X[22] = 0
maker, judge = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
first = torch.optim.Adam(judge.parameters(), lr=0.01)
second = torch.optim.RMSprop(maker.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(X), batch_size=4):
    made = maker(x + 0.1 * torch.randn(4, 4))
    first.zero_grad()
    (WEIGHT_1 * judge(x) - judge(made.detach())).mean().backward()
    first.step()
    print("step", [p.detach().double().sum().item() for p in judge.parameters()], flush=True)
    second.zero_grad()
    (WEIGHT_2 * judge(made)).mean().backward()
    second.step()
"""
WEIGHT = "torch.log(x.sum(1, keepdim=True))"


@pytest.mark.parametrize("which", [pytest.param(1, marks=pytest.mark.thorough), 2], ids=["first", "second"])
def test_other_optimizer_stepping_in_between_starts_as_recorded(tmp_path, which):
    captured = Captured(tmp_path, RIVALS.replace(f"WEIGHT_{which}", WEIGHT).replace(f"WEIGHT_{3 - which}", "1.0"))
    _, other = captured.about["start"]["optimizers"]
    assert (
        other["stepped"] == 1
        and other["stepped_before"] == (which == 1)
        and set(other["began"]["state"]) == set(other["state"])
    )
    assert captured.alarm["step"] == 5
    fixed = captured.with_changes((WEIGHT, "torch.log(x.sum(1, keepdim=True).clamp(min=1e-3))"))
    assert fixed.code == 0 and fixed.out.startswith("fixed: loss "), fixed.text()
    assert "and so it is as step 5 of the program itself" in fixed.out, fixed.text()
    same = captured.with_changes()
    assert same.code == 1 and same.out.startswith("not fixed: the same birth  aten::log"), same.text()
    if which == 2:  # its step, which is a part of the recorded one, came to the same bits
        assert steps(same.err)[-1] == captured.printed[-1], same.text()


# What the program computes before its call of `step` is no part of a step that a closure made.
CLOSURE = """
import torch
torch.manual_seed(6)
X, Y = torch.rand(64, 20), torch.rand(64) + 1
w = torch.nn.Parameter(torch.rand(20))
optimizer = torch.optim.LBFGS([w], lr=0.3, max_iter=3)
for i in range(6):
    y = Y[8 * i:8 * i + 8].repeat(3)
    y = y - 3 * (y == y.min()) * (i == 3)
    def closure():
        optimizer.zero_grad()
        loss = ((X[8 * i:8 * i + 8] @ w).repeat(3) - torch.log(y)).pow(2).mean()
        loss.backward()
        return loss
    optimizer.step(closure)
"""


def test_what_a_program_computes_before_a_closure(tmp_path):
    captured = Captured(tmp_path, CLOSURE)
    assert captured.alarm["rerun_by"] == "closure" and captured.alarm["step"] == 3
    same = captured.with_changes()
    assert same.code == 1 and same.out.startswith("not fixed: the same birth  aten::log"), same.text()
    fixed = captured.with_changes(("torch.log(y)", "torch.log(y.clamp(min=0.1))"))
    assert fixed.code == 0 and fixed.out.startswith("fixed"), fixed.text()


# The first step of a program, which is on the tape with all that made the model: its buffers are there as the step left
# them.
SEEN_FIRST = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(7)
X = torch.rand(32, 6)
X[2] = 0
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(X), batch_size=4):
    optimizer.zero_grad()
    model(torch.log(x)).mean().backward()
    optimizer.step()
"""


def test_buffers_of_a_first_step_that_it_poisoned(tmp_path):
    captured = Captured(tmp_path, SEEN_FIRST)
    assert captured.alarm["step"] == 0
    fixed = captured.with_changes(("torch.log(x)", "torch.log(x + 0.1)"))
    assert fixed.code == 0 and fixed.out.startswith("fixed"), fixed.text()
    same = captured.with_changes()
    assert same.code == 1 and same.out.startswith("not fixed: the same birth  aten::log"), same.text()


# Memory that nobody wrote is in the step: the whole of it is overwritten.
ASKED_FOR = """
import torch
torch.manual_seed(5)
w = torch.nn.Parameter(torch.rand(40))
optimizer = torch.optim.SGD([w], lr=0.01)
for i in range(6):
    rows = torch.rand(2, 40)
    ORDER
    back = torch.empty_like(order)
    back.scatter_(0, order, torch.arange(40))
    x = rows[:, back] * (i != 3)
    optimizer.zero_grad()
    torch.log((x * w).sum(1)).mean().backward()
    optimizer.step()
"""
CALL = ("(x * w).sum(1)", "((x * w).sum(1) + 0.01)")


@pytest.mark.thorough
def test_memory_that_nobody_wrote_need_not_come_up(tmp_path):
    captured = Captured(
        tmp_path,
        ASKED_FOR.replace("ORDER", "order = torch.randperm(40)\n    junk = torch.rand(40).double()\n    del junk"),
    )
    assert captured.about["start"]["unwritten"], "the memory of empty_like lies in the capsule as it was"
    assert captured.with_changes().code == 1
    fixed = captured.with_changes(CALL)
    assert fixed.code == 0 and fixed.out.startswith("fixed: loss "), fixed.text()


@pytest.mark.thorough
def test_what_numpy_wrote_there_has_to(tmp_path):
    """Its twin: data that no operator wrote is data all the same."""
    by_numpy = (
        "order = torch.empty(40, dtype=torch.long); order.numpy()[:] = "
        "numpy.random.RandomState(i + SHIFT).permutation(40)"
    )
    captured = Captured(tmp_path, "import numpy\nSHIFT = 0\n" + ASKED_FOR.replace("ORDER", by_numpy))
    assert captured.with_changes(CALL).code == 0
    other = captured.with_changes(CALL, ("SHIFT = 0", "SHIFT = 9"))
    assert other.code == 4 and "320 bytes (filled) did not come up" in other.out, other.text()


def test_old_start_is_sound_and_hostile_ones_refused(tmp_path):
    described = {
        "class": "SGD",
        "ordinal": 0,
        "failed": True,
        "parameters": {"w": "parameter.w"},
        "buffers": {},
        "state": {},
        "scalars": {},
        "groups": [{"lr": 0.1}],
    }
    start = {
        "tensors": {"parameter.w": {"dtype": "float32", "shape": [2]}},
        "optimizers": [described],
        "batches": [],
        "generators": None,
        "scaler": None,
    }
    assert is_sound(start)

    def with_one(**changes):
        other = copy.deepcopy(start)
        other["optimizers"][0].update(changes)
        return other

    assert is_sound(
        with_one(
            trees={"w": {"a": {"list": [{"float": "nan"}, {"tuple": []}]}}},
            not_kept=["w.b (deque)"],
            backwards=1,
            gradients=["w"],
        )
    )
    deep = {"value": 1}
    for _ in range(40):
        deep = {"list": [deep]}
    for changes in (
        {"trees": {"w": {"a": deep}}},
        {"trees": {"w": {"a": {"list": [1]}}}},
        {"trees": {"w": []}},
        {"trees": []},
        {"not_kept": "w"},
        {"trees": {"w": {"a": {"float": "1e9"}}}},
        {"trees": {"w": {"a": {}}}},
        {"backwards": -1},
        {"gradients": [1]},
        {"stepped": "1"},
    ):
        assert not is_sound(with_one(**changes)), changes
    assert not is_sound({**start, "unwritten": [-1]}) and not is_sound({**start, "unwritten": {}})


def test_an_earlier_capsule_still_serves(tmp_path):
    captured = Captured(tmp_path, TWO)
    old = tmp_path / "old"
    shutil.copytree(captured.capsule, old)
    about = json.loads((old / "capsule.json").read_text())
    about["start"].pop("unwritten")
    for described in about["start"]["optimizers"]:
        for key in ("trees", "not_kept", "gradients", "backwards", "stepped"):
            described.pop(key, None)
    helpers.put_about(old, about)
    assert captured.with_changes(capsule=str(old)).code == 1
    assert captured.with_changes(("torch.log(x.sum(1))", "torch.log(x.sum(1) + 0.01)"), capsule=str(old)).code == 0


# The second batch of the step is put together within it, of rows that do not lie together; the first was fetched in the
# step before.
ASKED_AHEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(4)
X = torch.rand(64, 6)
X[57] = 0
model = nn.Linear(6, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
class Ahead:
    def __iter__(self):
        left = iter(DataLoader(TensorDataset(X), batch_size=4, shuffle=True))
        now = next(left)
        for later in left:
            yield now
            now = later
        yield now
for i, (x,) in enumerate(Ahead()):
    (model(x)[:, 0] * torch.log(x.sum(1))).mean().backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_batch_assembled_within_the_step_is_found(tmp_path):
    captured = Captured(tmp_path, ASKED_AHEAD)
    assert captured.alarm["step"] == 1 and captured.about["start"]["batches"] == []
    fixed = captured.with_changes(("torch.log(x.sum(1))", "torch.log(x.sum(1) + 0.01)"))
    assert fixed.code == 0 and fixed.out.startswith("fixed: loss "), fixed.text()
