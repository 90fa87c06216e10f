"""Programs without an optimizer: a step is an engine call followed by writes to its leaves, or what finitude.step
says."""

import json
import textwrap

import pytest

import helpers

LOOP = """
import torch
torch.manual_seed(0)
w = torch.randn(3, requires_grad=True)
momentum = torch.zeros(3)
for i in range(8):
    x = torch.rand(4, 3) + 0.5
    if i == BAD:
        x[2] = 0
    loss = (1 / x.sum(1) * (x @ w)).pow(2).mean()
    GUARD
    UPDATE
    print(i, bool(w.isfinite().all()), bool(momentum.isfinite().all()))
"""
UPDATES = {
    "backward": "loss.backward()\nwith torch.no_grad():\n    w -= 0.1 * w.grad\n    w.grad.zero_()",
    "data": "w.grad = None\nloss.backward()\nw.data -= 0.1 * w.grad",
    "grad": "g, = torch.autograd.grad(loss, [w])\nwith torch.no_grad():\n    "
    "momentum.mul_(0.9).add_(g)\n    w.sub_(momentum, alpha=0.1)",
}
BIRTH = "loss = (1 / x.sum(1) * (x @ w)).pow(2).mean()"


def replayed(run):
    """How a replay of the capsule came out that the alarm left."""
    return json.loads((run.folder / run.the_alarm()["capsule"] / "capsule.json").read_text())["replay"]


def script(update, bad=4, guard="pass"):
    return (
        LOOP.replace("BAD", str(bad))
        .replace("GUARD", guard)
        .replace("    UPDATE", textwrap.indent(UPDATES[update], "    "))
    )


@pytest.mark.parametrize("update", UPDATES)
def test_healthy_program_is_watched_and_bit_identical(tmp_path, update):
    text = script(update, bad=None) + "print(w.tolist())\n"
    run = helpers.run(tmp_path, text)
    run.assert_silent()
    assert run.watched["steps"] == 8 and run.out == helpers.plain(tmp_path, tmp_path / "train.py").out


@pytest.mark.slow
@pytest.mark.parametrize("update", UPDATES)
def test_bad_step_is_skipped_and_explained(tmp_path, update):
    run = helpers.run(tmp_path, script(update), "--on-alarm", "skip")
    alarm = run.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"], alarm["rerun"]) == (
        4,
        "loss",
        "clean",
        "persistent",
    ), run.text()
    assert alarm["rerun_by"] == "restart" and alarm["rerun_verified"] and alarm["births"][0]["source"] == BIRTH, alarm
    assert run.code == 0 and run.out == "".join(f"{i} True True\n" for i in range(8)), run.text()
    assert replayed(run) == "identical"


@pytest.mark.slow
@pytest.mark.parametrize("update", UPDATES)
def test_a_bad_first_step_is_one_alarm(tmp_path, update):
    """That the program writes its leaves is known only when the next loss has been computed with them."""
    run = helpers.run(tmp_path, script(update, bad=0), "--on-alarm", "skip")
    alarm = run.the_alarm()
    assert (alarm["step"], alarm["weights"], alarm["births"][0]["source"]) == (0, "clean", BIRTH), run.text()
    assert "step 1, computed with what this one had written" in alarm["text"] and run.code == 0, run.text()
    first = f"0 False {update != 'grad'}\n"
    assert run.out == first + "".join(f"{i} True True\n" for i in range(1, 8))


@pytest.mark.parametrize("update", UPDATES)
def test_raise_from_next_call_restores_the_weights(tmp_path, update):
    run = helpers.run(tmp_path, script(update), "--on-alarm", "raise")
    alarm = run.the_alarm()
    assert run.code == 1 and "NonFiniteError: step 4" in run.err and run.out.count("\n") == 5, run.text()
    assert (alarm["weights"], alarm["rerun_by"]) == ("clean", "none")


@pytest.mark.slow
@pytest.mark.parametrize("update", UPDATES)
def test_warn_changes_nothing(tmp_path, update):
    run = helpers.run(tmp_path, script(update), "--on-alarm", "warn")
    assert run.out == helpers.plain(tmp_path, tmp_path / "train.py").out and run.the_alarm()["step"] == 4, run.text()


def test_program_that_drops_the_step_itself_is_unaffected(tmp_path):
    guarded = UPDATES["grad"].replace("with torch", "if not g.isfinite().all(): continue\nwith torch")
    text = LOOP.replace("BAD", "4").replace("GUARD", "pass").replace("    UPDATE", textwrap.indent(guarded, "    "))
    run = helpers.run(tmp_path, text)
    assert run.code == 0 and not run.alarms and run.watched["handled_by_script"] == 1, run.text()
    assert run.out == "".join(f"{i} True True\n" for i in range(8) if i != 4)


NUMPY = "w.grad = None\nloss.backward()\nw.data.numpy()[...] -= 0.1 * w.grad.numpy()"
FOREACH = "w.grad = None\nloss.backward()\ntorch._foreach_add_([w.data], [w.grad], alpha=-0.1)"


@pytest.mark.parametrize(
    "update, is_seen", [(UPDATES["data"], True), (FOREACH, True), (NUMPY, False)], ids=["data", "foreach", "numpy"]
)
@pytest.mark.parametrize("drops", [True, False], ids=["dropped", "applied"])
def test_unmarked_writes_are_detected_when_operators_make_them(tmp_path, update, is_seen, drops):
    """Under skip what is added is zero. Whether it is added at all is seen; numpy's writes are not, and count as
    made."""
    lines = update.splitlines()
    guard = ["if loss.isnan() and DROPS: continue".replace("DROPS", str(drops))]
    text = (
        LOOP.replace("BAD", "4")
        .replace("GUARD", "pass")
        .replace("    UPDATE", textwrap.indent("\n".join(lines[:2] + guard + lines[2:]), "    "))
    )
    run = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert run.code == 0 and run.out == "".join(f"{i} True True\n" for i in range(8) if i != 4 or not drops), run.text()
    assert (len(run.alarms), run.watched["handled_by_script"]) == ((0, 1) if drops and is_seen else (1, 0)), run.text()
    assert all(("is not known" in a["text"]) != is_seen for a in run.alarms), run.text()


def test_program_only_inspecting_gradients_is_not_training(tmp_path):
    run = helpers.run(
        tmp_path,
        """
        import torch
        x = torch.zeros(3, requires_grad=True)
        for i in range(20):
            (x.sum() / (0 if i == 15 else 1)).backward()
        """,
    )
    assert run.report["outcome"] == "unwatched" and not run.alarms, run.text()


CLOSURES = """
import torch
import finitude
torch.manual_seed(0)
w = torch.randn(3, requires_grad=True)
momentum, calls, noise = torch.zeros(3), [], []
def one(i):
    def closure():
        calls.append(i)
        noise.append(torch.rand(()).item())
        x = torch.rand(4, 3) * (0 if i == 4 else 1)
        loss = (1 / x.sum(1) * (x @ w)).pow(2).mean()
        g, = torch.autograd.grad(loss, w)
        with torch.no_grad():
            momentum.mul_(0.9).add_(g)
            w.sub_(momentum, alpha=0.1)
    return closure
for i in range(7):
    finitude.step(one(i))
print(calls, noise, bool(w.isfinite().all()), bool(momentum.isfinite().all()))
"""


@pytest.mark.usefixtures("replays")
def test_repeated_closure_call_has_no_side_effects(tmp_path):
    run = helpers.run(tmp_path, CLOSURES, "--on-alarm", "skip")
    alarm = run.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == (
        4,
        "persistent",
        "closure",
        True,
    ), run.text()
    assert alarm["births"][0]["source"] == BIRTH and alarm["weights"] == "clean"
    before, after = helpers.plain(tmp_path, tmp_path / "train.py").out, run.out
    assert after.replace("True True", "") == before.replace("False False", "") and "True True" in after
    assert replayed(run) == "identical"


def test_stop_comes_out_of_finitude_step(tmp_path):
    run = helpers.run(tmp_path, CLOSURES)
    assert run.code == 1 and "NonFiniteError: step 4" in run.err and run.the_alarm()["rerun_by"] == "closure", (
        run.text()
    )


ENDED = "and ended after it had applied this step"


@pytest.mark.slow
@pytest.mark.parametrize("update", UPDATES)
def test_applied_last_step_is_reported_as_applied(tmp_path, update):
    run = helpers.run(tmp_path, script(update, bad=7))
    alarm = run.the_alarm()
    assert run.out.splitlines()[-1].startswith("7 False") and run.code == 1 and "NonFiniteError: step 7" in run.err, (
        run.text()
    )
    assert (alarm["weights"], alarm["births"][0]["source"]) == ("damaged", BIRTH) and ENDED in alarm["text"], alarm
    assert "was applied" in run.err and "Weights are damaged" in run.err.replace("\n          ", " "), run.text()


def test_last_step_of_zeros_leaves_weights_clean(tmp_path):
    run = helpers.run(tmp_path, script("backward", bad=7), "--on-alarm", "skip")
    assert run.code == 0 and run.out.splitlines()[-1] == "7 True True", run.text()
    assert run.the_alarm()["weights"] == "clean" and ENDED not in run.the_alarm()["text"], run.text()


def test_last_step_dropped_by_script_is_left_alone(tmp_path):
    run = helpers.run(tmp_path, script("backward", bad=7, guard="if loss.isnan(): break"))
    assert run.code == 0 and not run.alarms, run.text()
    late = script("grad", bad=7).replace("    with torch", "    if not g.isfinite().all(): break\n    with torch")
    run = helpers.run(tmp_path, late)
    assert run.code == 0 and not run.alarms and run.watched["handled_by_script"] == 1, run.text()


@pytest.mark.parametrize(
    "policy, guard, alarms",
    [
        ("skip", "pass", 1),
        ("warn", "pass", 1),
        ("skip", "if not loss.isfinite(): loss.backward(); w.grad.zero_(); continue", 0),
    ],
)
def test_exception_long_after_bad_step_is_unrelated(tmp_path, policy, guard, alarms):
    run = helpers.run(
        tmp_path, script("backward", guard=guard) + "raise RuntimeError('something else')\n", "--on-alarm", policy
    )
    assert (run.code, len(run.alarms)) == (1, alarms), run.text()
    assert not any("RuntimeError" in a["text"] for a in run.alarms), run.text()


STATISTICS = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
for i in range(6):
    x = torch.rand(6, 3)
    if i == 3:
        x[2] = float("nan")
    net.zero_grad()
    net(x).pow(2).mean().backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
    print(net[1].running_mean.tolist(), net[1].num_batches_tracked.item())
"""


def test_running_statistics_of_skipped_step_are_restored(tmp_path):
    run = helpers.run(tmp_path, STATISTICS, "--on-alarm", "skip")
    lines = run.out.splitlines()
    assert run.code == 0 and "nan" not in run.out and lines[2] == lines[3] != lines[4], run.text()


# A bad gradient of a finite loss: the weights are ruined by the time the next loss is computed.
RUINED = """
import torch
torch.manual_seed(0)
w = torch.randn(3, requires_grad=True)
for i in range(8):
    loss = (torch.rand(4, 3) @ w).pow(2).mean()
    if i == 3:
        loss = loss + (w - w.detach()).sqrt().sum()
    w.grad = None
    loss.backward()
    UPDATE
"""


@pytest.mark.parametrize(
    "update",
    ["w.data = w.data - 0.1 * w.grad", "w.data.copy_(w.data - w.grad)", "torch._foreach_add_([w.data], [w.grad])"],
)
def test_weights_that_an_update_before_ruined_are_not_clean(tmp_path, update):
    alarm = helpers.run(tmp_path, RUINED.replace("UPDATE", update), "--on-alarm", "raise").the_alarm()
    assert (alarm["step"], alarm["weights"]) == (4, "damaged"), alarm
    assert "its parameters are not finite: an update before wrote them" in alarm["text"]
