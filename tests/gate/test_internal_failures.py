"""Where we fail while a bad step is being explained, that costs part of the explanation, and is reported; the step is
bad all the same, and the steps after it are watched as before."""

import pytest

import helpers

# What fails stands for any place of ours that meets something it does not expect.
BROKEN = (
    helpers.TRAINING
    + """
import finitude.rerun.{module} as module
def broken(*words, **more):
    raise ZeroDivisionError("ours")
module.{name} = broken
for k, x in enumerate(batches):
    before = [p.clone() for p in model.parameters()]
    opt.zero_grad()
    loss = loss_of(x) * (NAN if k in (3, 5) else 1)
    loss.backward()
    opt.step()
    same = all(bool((a == b).all()) for a, b in zip(before, model.parameters()))
    print(k, finite(), "left out" if same else "applied")
"""
)
PLACES = [("rewind", "begin"), ("rewound", "Rewound._end"), ("alarm_correlation", "RecentAlarms.runs_again")]
NATIVE = BROKEN.replace("import finitude.rerun.{module} as module", "from finitude import _native as module")


def _assert_reported(got, steps, error="ZeroDivisionError: ours"):
    assert [a["step"] for a in got.alarms] == steps and got.report["unwatched_from"] is None, got.text()
    assert error in [f["text"] for f in got.report["failures"]], (got.report["failures"], got.text())
    closing = next(
        line for line in got.err.splitlines() if " steps watched in " in line and line.startswith("finitude: ")
    )
    assert got.err.count(f"({error})") == 1 and error in closing, got.text()


@pytest.mark.fast
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_stop_stops(tmp_path, place):
    got = helpers.run(tmp_path, BROKEN.format(module=place[0], name=place[1]))
    _assert_reported(got, [3])
    assert got.code == 1 and "NonFiniteError: step 3: loss is NaN" in got.err, got.text()
    assert got.out.splitlines()[-1] == "2 True applied" and got.alarms[0]["weights"] == "clean", got.text()


@pytest.mark.fast
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_skip_leaves_each_bad_step_out(tmp_path, place):
    got = helpers.run(tmp_path, BROKEN.format(module=place[0], name=place[1]), "--on-alarm", "skip")
    _assert_reported(got, [3, 5])
    assert got.code == 0 and [a["weights"] for a in got.alarms] == ["clean"] * 2, got.text()
    assert got.out.splitlines()[3:] == ["3 True left out", "4 True applied", "5 True left out"], got.text()


@pytest.mark.fast
def test_another_way_explains_what_one_fails_at(tmp_path):
    got = helpers.run(tmp_path, BROKEN.format(module="rewind", name="begin"), "--on-alarm", "skip")
    assert (got.alarms[0]["rerun_by"], got.alarms[0]["births"][0]["op"]) == ("restart", "aten::mul"), got.text()


@pytest.mark.fast
def test_warn_applies_it(tmp_path):
    got = helpers.run(tmp_path, BROKEN.format(module="rewind", name="begin"), "--on-alarm", "warn")
    assert got.code == 0 and got.alarms[0]["weights"] == "damaged", got.text()
    assert got.out.splitlines()[3:] == ["3 False applied", "4 False applied", "5 False applied"], got.text()


@pytest.mark.fast
@pytest.mark.parametrize(
    "name, policy",
    [
        ("put_back", "stop"),
        ("window", "skip"),
        ("window_verdict", "skip"),
        ("consume_losses", "skip"),
        ("rewind_end", "skip"),
        ("trace_start", "stop"),
        ("counters", "skip"),
    ],
)
def test_a_failure_of_the_engine_lets_nothing_through(tmp_path, name, policy):
    """Whatever part of it fails, the weights stay as they are: torch itself says whether gradients are finite where the
    gate does not."""
    got = helpers.run(tmp_path, NATIVE.format(name=name), "--on-alarm", policy)
    last, steps = ("2 True applied", [3]) if policy == "stop" else ("5 True left out", [3, 5])
    assert got.out.splitlines()[-1] == last and got.code == (policy == "stop"), got.text()
    assert [a["step"] for a in got.alarms] == steps or name in ("window", "counters"), got.text()


DROPPED = (
    helpers.TRAINING
    + """
import finitude.capsules.capsule as module
def broken(*words, **more):
    raise ZeroDivisionError("ours")
module.describe = broken
for k, x in enumerate(batches):
    opt.zero_grad()
    (loss_of(x) + (ENDLESS_SLOPE if k == 3 else 0)).backward()
    if not torch.isfinite(model.weight.grad).all(): continue
    opt.step()
print("ended", finite(), model.weight.sum().item())
"""
).replace("ENDLESS_SLOPE", helpers.ENDLESS_SLOPE)


@pytest.mark.fast
def test_failure_in_rerun_of_dropped_step_is_harmless(tmp_path):
    got = helpers.run(tmp_path, DROPPED)
    assert got.code == 0 and got.alarms == [] and "NonFiniteError" not in got.err, got.text()
    assert got.report["failures"] and got.advisories("handled-by-script"), got.text()
    helpers.write_script(tmp_path, DROPPED, "plain.py")
    assert helpers.plain(tmp_path, "plain.py").out == got.out


LITTLE_MEMORY = """
import resource, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for k in range(7):
    x = torch.randn(512, 64)
    if k in (3, 5): x = x / 0
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    if k == 3:
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ({megabytes} << 20), resource.RLIM_INFINITY))
    opt.step()
print("ended", all(bool(torch.isfinite(p).all()) for p in model.parameters()))
"""


@pytest.mark.fast
@pytest.mark.parametrize("megabytes", [8, 40])
def test_too_little_memory_for_an_explanation_ends_nothing(tmp_path, megabytes):
    """The program has what it needs; a second run, with all that is recorded, may not."""
    got = helpers.run(
        tmp_path, LITTLE_MEMORY.format(megabytes=megabytes), "--on-alarm", "skip", env={"MALLOC_ARENA_MAX": "1"}
    )
    assert (got.code, got.out) == (0, "ended True\n"), got.text()
    assert [a["step"] for a in got.alarms] == [3, 5] and got.report["unwatched_from"] is None, got.text()


NO_MEMORY_FOR_SIGNALS = """
import signal
def none(*words): raise MemoryError()
for k, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x) * (NAN if k in (3, 5) else 1)
    kept = signal.getsignal, signal.valid_signals
    if k in (3, 5): signal.getsignal = signal.valid_signals = none
    loss.backward()
    opt.step()
    signal.getsignal, signal.valid_signals = kept
print("ended", finite())
"""


@pytest.mark.fast
def test_no_memory_to_look_at_handlers_of_signals(tmp_path):
    got = helpers.training(tmp_path, NO_MEMORY_FOR_SIGNALS, "--on-alarm", "skip")
    assert (got.code, got.out) == (0, "ended True\n") and [a["step"] for a in got.alarms] == [3, 5], got.text()
