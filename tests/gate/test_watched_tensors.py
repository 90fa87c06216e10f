"""finitude.watch(tensors=...): averages of the program's own are looked at in each step."""

import json
import textwrap

import pytest

import helpers
from finitude.base.config import UsageError
from finitude.session import watched_tensors
from finitude.store import reader

# The average takes in a NaN after step 2; a function's average is bound again each step and takes in one after step 4.
# Step 5 has a bad loss.
PROGRAM = """
import finitude, json
from torch.utils.data import DataLoader

average, count, box = torch.zeros(3), torch.zeros(1), {"mean": torch.zeros(2)}
calls = []

def mean():
    calls.append(1)
    return box["mean"]

def fails():
    raise ValueError("of the user's")

loader = DataLoader(torch.stack(batches[:1] * 8), batch_size=None)
given = {"average": average, "count": count, "mean": mean, "fails": fails}
with finitude.watch(model, opt, tensors=given, on_alarm="skip") as w:
    for i, x in enumerate(loader):
        opt.zero_grad()
        loss = loss_of(x) * (NAN if i == 5 else 1.0)
        loss.backward()
        opt.step()
        count.add_(1)
        if i != 5:
            average.mul_(0.5).add_(float("nan") if i == 2 else 1.0)
            box["mean"] = box["mean"] * (float("nan") if i == 4 else 1.0)
    print(count.item())
    r = w.report()
    print(json.dumps([(a["step"], a["sink"], a["weights"], a["births"][:1]) for a in r["alarms"]]))
    print(json.dumps([(a["kind"], a["step"], a["text"]) for a in r["advisories"]]))
from torch.optim import optimizer
print(bool(optimizer._global_optimizer_pre_hooks), len(calls))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensors")
    helpers.write_script(folder, helpers.TRAINING + textwrap.dedent(PROGRAM))
    done = helpers.plain(folder, "train.py")
    assert done.code == 0, done.text()
    return done


def test_nan_in_a_named_tensor_is_an_alarm(program):
    (step, sink, weights, births), second = json.loads(program.out.splitlines()[1])
    assert (step, sink, weights) == (3, {"kind": "buffer", "name": "average"}, "clean")
    assert births[0]["op"].startswith("aten::") and "average.mul_" in births[0]["source"], births
    assert second[0] == 5 and second[1]["kind"] == "loss"


def test_a_skipped_step_keeps_earlier_updates(program):
    assert program.out.splitlines()[0] == "8.0"


def test_nan_of_a_function_is_an_advisory(program):
    advisories = json.loads(program.out.splitlines()[2])
    assert advisories == [["watched-tensor", 5, "mean holds 2 NaN as the step begins"]]


def test_each_has_a_series_in_the_store(program):
    with reader.Store(str(next(program.folder.glob("finitude-runs/*/store.sqlite")))) as store:
        found = {s.optimizer: store.points(s.id) for s in store.series() if s.quantity == "tensor_absmax"}
    assert set(found) == {"average", "count", "mean"}
    assert [max(p.max for p in found["count"]), found["count"][-1].last_step] == [7.0, 7]
    assert max(p.max for p in found["average"]) == 1.5  # with the NaN of an element left out


def test_a_failing_function_is_said_once(program):
    assert program.err.count("tensors['fails'] of watch is not looked at: ValueError: of the user's") == 1


def test_no_hook_outlives_the_watch(program):
    last = program.out.splitlines()[3].split()
    assert last[0] == "False" and int(last[1]) >= 7


@pytest.mark.parametrize("given", [[1], {"a": 3}, {1: print}, {"": print}])
def test_what_is_no_tensor_is_refused(given):
    with pytest.raises(UsageError, match="tensors"):
        watched_tensors.check(given)
