"""Averages that a step binds anew instead of writing them in place: in an attribute of an object, or to the name of a
buffer. The second run does not begin with what the first has left there, and what a bad step leaves there is no batch."""

import pytest
import torch

import helpers
from finitude.effects import copies, rebound_attributes

AVERAGE = """
import torch
torch.manual_seed(0)
class Plain:
    def __init__(self):
        self.mean = torch.zeros(8)
    def __call__(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean
class Slots:
    __slots__ = ("mean",)
    __init__, __call__ = Plain.__init__, Plain.__call__
class Pair:
    def __init__(self):
        self.means = (torch.zeros(8), 0)
    def __call__(self, x):
        self.means = (0.9 * self.means[0] + 0.1 * x.mean(0), self.means[1] + 1)
        return x - self.means[0]
class Dict:
    def __init__(self):
        self.held = {"mean": torch.zeros(8)}
    def __call__(self, x):
        self.held["mean"] = 0.9 * self.held["mean"] + 0.1 * x.mean(0)
        return x - self.held["mean"]
class Buffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
    forward = Plain.__call__
norm = KIND()
model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(8, 1))
if isinstance(norm, torch.nn.Module):
    model[0] = norm
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(9):
    x = torch.randn(16, 8)
    x = x / torch.full((16, 1), 0.0 if i == 4 else 2.0)  # birth
    loss = model(x if isinstance(norm, torch.nn.Module) else norm(x)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
NAMES = {"Plain": "Plain.mean", "Slots": "Slots.mean", "Pair": "Pair.means", "Dict": "held.mean", "Buffer": "0.mean"}


@pytest.mark.parametrize("kind", NAMES)
def test_rerun_starts_without_attributes_bound_by_first_run(tmp_path, kind):
    got = helpers.run(tmp_path, AVERAGE.replace("KIND", kind), "--on-alarm", "skip")
    first, second = got.alarms[:2]
    assert (first["step"], first["rerun_by"], first["rerun_verified"]) == (4, "restart", True), got.text()
    assert "its first run had left it non-finite" in first["rerun_text"], first["rerun_text"]
    assert [(b["op"], "# birth" in b["source"]) for b in first["births"]] == [("aten::div", True)], first["births"]
    assert first["cause"]["class"] == "division-by-zero" and first["fix"]["verified"], first["fix"]
    assert [(b["name"], b["put_back"]) for b in first["buffers"]] == [(NAMES[kind], False)], first["buffers"]
    # The batch of the next step is as it should be; what that step begins with is not.
    birth = second["births"][0]
    assert (second["step"], birth["phase"], birth["name"], birth["rows"]) == (5, "state", NAMES[kind], []), got.text()
    assert second["cause"]["class"] == "sticky-state" and NAMES[kind] in second["cause"]["text"], second["cause"]
    assert (second["rerun_by"], second["rerun_verified"]) == ("rewind", True), second["rerun_text"]
    assert [a.get("repeat_of") for a in got.alarms[2:]] == [5] * 3, [a["cause"] for a in got.alarms]


def test_what_no_operation_reads_again_has_no_part(tmp_path):
    text = AVERAGE.replace("KIND", "Plain").replace("loss = model", "norm.loss = loss = model")
    text = text.replace("self.mean = 0.9 * self.mean + 0.1 * x.mean(0)", "self.mean = x.mean(0)")
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (4, "rewind", True), got.text()
    assert "# birth" in alarm["births"][0]["source"] and alarm["fix"]["verified"], alarm["births"]


def test_program_continues_with_attributes_bound_by_first_run(tmp_path):
    """As where the program itself applies no such step."""
    text = AVERAGE.replace("KIND", "Buffer").replace(
        "self.mean = 0.9 * self.mean + 0.1 * x.mean(0)",
        "self.mean = 0.9 * self.mean + 0.1 * x.clamp(-9, 9).nan_to_num().mean(0)",
    )
    text += "print(norm.mean.tolist(), model[1].weight.tolist())\n"
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert got.the_alarm()["step"] == 4, got.text()
    helpers.write_script(tmp_path, text.replace("    opt.step()", "    if i != 4: opt.step()"), "own.py")
    assert (got.code, got.out) == (0, helpers.plain(tmp_path, "own.py").out), got.text()


def test_step_behind_skipped_one_is_recorded_by_restart(tmp_path):
    """Batches come out of a list, so that no step is run again in place, and the step before is applied in none."""
    text = AVERAGE.replace("KIND", "Plain").replace(
        "for i in range(9):", "left = list(range(9))\nwhile left:\n    i = left.pop(0)"
    )
    text = text.replace("torch.randn(16, 8)", "torch.randn(16, 8, generator=torch.Generator().manual_seed(i))")
    got = helpers.run(tmp_path, text.replace("i == 4", "i == 2"), "--on-alarm", "skip")
    second = got.alarms[1]
    assert (second["step"], second["rerun_by"], second["rerun_verified"]) == (3, "restart", True), got.text()
    birth = second["births"][0]
    assert (birth["phase"], birth["name"]) == ("state", "Plain.mean") and "self.mean" in birth["source"], birth
    assert second["cause"]["class"] == "sticky-state", second["cause"]


def test_step_behind_scaler_skip_starts_at_its_return(tmp_path):
    text = AVERAGE.replace("KIND", "Buffer").replace("for i in", "scaler = torch.amp.GradScaler('cpu')\nfor i in")
    text = text.replace("loss.backward()", "scaler.scale(loss).backward()")
    text = text.replace("opt.step()", "scaler.step(opt)\n    scaler.update()")
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    second = got.alarms[1]
    assert (second["step"], second["rerun_by"], second["rerun_verified"]) == (5, "rewind", True), got.text()
    assert (second["births"][0]["name"], second["cause"]["class"]) == ("0.mean", "sticky-state"), second["births"]


def test_nor_does_a_closure_that_is_called_again(tmp_path):
    head, _, rest = AVERAGE.replace("KIND", "Plain").partition("    loss = model(")
    body = "    loss = model(norm(x)).pow(2).mean()\n" + rest.partition("\n")[2].replace("    opt.step()\n", "")
    text = f"{head}    def closure():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    got = helpers.run(tmp_path, text + "        return loss\n    opt.step(closure)\n", "--on-alarm", "skip")
    first, second = got.alarms[:2]
    assert "closure: the step writes Plain.mean" in first["rerun_text"] and first["rerun_by"] == "restart", got.text()
    assert "# birth" in first["births"][0]["source"] and len(first["births"]) == 1, first["births"]
    assert (second["rerun_by"], second["cause"]["class"]) == ("closure", "sticky-state"), got.text()


def test_what_counts_as_left_behind():
    bad, fine = torch.tensor([1.0, float("nan")]), torch.ones(2)

    def left(then, now):
        held, it = rebound_attributes.Bound(), {"mean": then}
        held.add("Norm", copies.OfDict(it), dict(it))
        it["mean"] = now
        return [name for name, _ in held.ruined()], [one.name for one in held.left({})]

    assert left(bad, bad.clone()) == (["Norm.mean"], ["Norm.mean"])
    assert left(bad, fine) == (["Norm.mean"], [])  # a batch, and the next one
    assert left(bad, torch.full((3,), float("nan"))) == (["Norm.mean"], [])
    assert left(bad, bad) == left(fine, bad) == ([], [])
    assert left((fine, bad), (fine, bad.clone())) == (["Norm.mean"], ["Norm.mean"])
    assert left(bad, None) == (["Norm.mean"], [])


def test_ruined_attribute_is_given_to_rerun_unless_overwritten():
    bad, it = torch.full((2,), float("nan")), {}
    one = rebound_attributes.Left("Norm.mean", copies.OfDict(it), "mean", bad)
    for written in (False, True):
        it["mean"] = torch.full((2,), float("inf"))
        held = rebound_attributes.Bound()
        held.add("Norm", copies.OfDict(it), dict(it))
        if written:
            bad.add_(1)
        held.give([one])
        assert (it["mean"] is bad) is not written
        it["mean"] = torch.full((2,), float("inf"))
        assert bool(held.ruined()) is written
