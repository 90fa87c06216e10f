"""A script that finds the bad value itself and raises: an alarm, and its own exception and exit code are kept."""

import pytest

import helpers
from helpers import training

LOOP = """
import math, sys
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i == 3: loss = loss {fault}
    {before}
    loss.backward()
    {after}
    opt.step()
print("ended", finite())
"""

GUARDS = {
    "assert on the gradient": (
        "pass",
        "assert torch.isfinite(model.weight.grad).all(), 'gradient exploded'",
        "AssertionError: gradient exploded",
        1,
    ),
    "error_if_nonfinite": (
        "pass",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)",
        "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite",
        1,
    ),
    "isnan check after backward": (
        "pass",
        "if torch.isnan(loss): raise ValueError('loss is gone')",
        "ValueError: loss is gone",
        1,
    ),
    "sys.exit after backward": (
        "pass",
        "if not math.isfinite(loss): print('stopping', file=sys.stderr); sys.exit(7)",
        "stopping",
        7,
    ),
}

# The same guards one line earlier, where detection code of well-known trainings has them.
EARLY = {
    "isnan check before backward": (
        "if torch.isnan(loss): raise ValueError('loss is gone')",
        "ValueError: loss is gone",
        1,
    ),
    "sys.exit before backward": (
        "if not math.isfinite(loss): print('Loss is nan, stopping', file=sys.stderr); sys.exit(7)",
        "stopping",
        7,
    ),
}


@pytest.mark.parametrize("before, after, words, code", GUARDS.values(), ids=GUARDS)
def test_raising_guard_alarms_and_keeps_its_exit_code(tmp_path, before, after, words, code):
    got = training(tmp_path, LOOP.format(fault="* NAN", before=before, after=after))
    assert got.code == code and words in got.err, got.text()
    assert "NonFiniteError" not in got.err and "ended" not in got.out
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "loss", "clean"), got.text()


def test_policy_raise_never_runs_a_step_again(tmp_path):
    before, after, _, _ = GUARDS["assert on the gradient"]
    alarm = training(
        tmp_path, LOOP.format(fault="* NAN", before=before, after=after), "--on-alarm", "raise"
    ).the_alarm()
    assert (alarm["rerun"], alarm["rerun_by"]) == ("not-run", "none")


def test_traced_step_is_explained_without_second_process(tmp_path):
    before, after, _, _ = GUARDS["isnan check after backward"]
    alarm = training(tmp_path, LOOP.format(fault="* NAN", before=before, after=after), "--level", "trace").the_alarm()
    assert alarm["rerun_by"] == "trace" and alarm["births"][0]["op"] == "aten::mul"


def test_untraced_step_is_explained_by_restart(tmp_path):
    before, after, words, code = GUARDS["error_if_nonfinite"]
    got = training(tmp_path, LOOP.format(fault="* NAN", before=before, after=after), "--on-alarm", "stop")
    assert got.code == code and words in got.err, got.text()
    alarm = got.the_alarm()
    assert (alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == ("persistent", "restart", True), got.text()
    assert alarm["births"][0]["op"] == "aten::mul" and "loss * NAN" in alarm["births"][0]["source"]


@pytest.mark.parametrize("guard, words, code", EARLY.values(), ids=EARLY)
def test_a_guard_before_backward_is_an_alarm_too(tmp_path, guard, words, code):
    got = training(tmp_path, LOOP.format(fault="* NAN", before=guard, after="pass"))
    assert got.code == code and words in got.err, got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "loss", "clean"), got.text()


def test_guards_that_find_nothing_are_silent(tmp_path):
    lines = "; ".join(a for _, a, _, _ in GUARDS.values() if not a.startswith("if"))
    training(tmp_path, LOOP.format(fault="", before="assert torch.isfinite(loss)", after=lines)).assert_silent()


def test_exception_unrelated_to_numbers_is_no_alarm(tmp_path):
    got = training(tmp_path, LOOP.format(fault="", before="if i == 3: raise KeyError('a column')", after="pass"))
    assert got.code == 1 and got.report["outcome"] == "clean" and not got.alarms, got.text()
    assert got.err.rstrip().endswith("KeyError: 'a column'"), got.err


def test_exception_after_a_dropped_window_is_no_alarm(tmp_path):
    # The script threw the bad gradients away and trained on; what ends it later is another matter.
    got = training(
        tmp_path,
        LOOP.format(fault="* NAN", before="if i == 5: raise KeyError('a column')", after="if i == 3: continue"),
    )
    assert got.code == 1 and not got.alarms, got.text()
    assert got.watched["handled_by_script"] == 1


def test_exception_caught_within_the_window_is_no_alarm(tmp_path):
    guard = """
    try: nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    except RuntimeError: continue"""
    got = training(tmp_path, LOOP.format(fault="* NAN", before="pass", after=guard.strip()))
    assert (got.code, got.out, got.alarms) == (0, "ended True\n", []), got.text()
    assert got.watched["handled_by_script"] == 1


GIVES_UP = """
def train():
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate(batches):
        loss = (model(x) / (x.abs().max() * (i != {bad}))).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {{loss.item()}}")
        opt.step()
import sys
try:
    train()
except FloatingPointError as e:
    print("gave up:", e)
    sys.exit(3)
"""


def test_guard_is_explained_after_model_is_gone(tmp_path):
    got = training(tmp_path, GIVES_UP.format(bad=4), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert (got.code, got.out) == (3, "gave up: loss is nan\n") or got.out == "gave up: loss is inf\n", got.text()
    assert (alarm["step"], alarm["optimizer"], alarm["sink"]["kind"]) == (4, "SGD", "loss")
    assert alarm["births"][0]["op"] == "aten::div" and "model(x) / " in alarm["births"][0]["source"]
    assert got.watched["handled_by_script"] == 0 and not got.advisories(), got.text()


def test_the_same_program_without_the_fault_is_silent(tmp_path):
    training(tmp_path, GIVES_UP.format(bad=None), "--on-alarm", "stop").assert_silent()


VALIDATED = """
for i, x in enumerate(batches):
    opt.zero_grad()
    centre = model(x) if i != {bad} else model(x).sub(10).sqrt()
    loss = -torch.distributions.Normal(centre, 1.0).log_prob(torch.zeros(8, 3)).mean()
    loss.backward()
    opt.step()
"""


def test_values_that_a_library_refuses_are_an_alarm(tmp_path):
    got = training(tmp_path, VALIDATED.format(bad=3), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert got.code == 1 and "ValueError" in got.err
    assert (alarm["step"], alarm["births"][0]["op"], alarm["cause"]["class"]) == (3, "aten::sqrt", "negative-domain"), (
        got.text()
    )


def test_error_not_mentioning_values_is_no_alarm(tmp_path):
    got = training(
        tmp_path,
        """
        scores = model(batches[0]).masked_fill(torch.eye(8, 3) > 0, -INF)
        loss_of(batches[0]).backward()
        opt.step()
        raise RuntimeError("the shapes 3 and 4 do not match")
        """,
        "--on-alarm",
        "stop",
    )
    assert got.code == 1 and got.report["outcome"] == "clean", got.text()


STEPS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
for i in range(5):
    x = torch.rand(8, 4)
    def closure():
        optimizer.zero_grad()
        h = torch.log(model(x).abs() * (0.0 if i == 3 else 1.0))
        {activations}
        loss = h.mean()
        {loss}
        loss.backward()
        return loss
    {call}
"""


def steps(optimizer="LBFGS", call="optimizer.step(closure)", activations="pass", loss="pass"):
    return STEPS.format(optimizer=optimizer, call=call, activations=activations, loss=loss)


LOSS = "if torch.isinf(loss): raise ValueError('loss is gone')"


@pytest.mark.parametrize(
    "words",
    [
        {"optimizer": "Adam", "call": "closure(); optimizer.step()", "loss": LOSS},
        {"loss": LOSS},
        {
            "optimizer": "Adam",
            "call": "closure(); optimizer.step()",
            "activations": "assert torch.isfinite(h).all(), 'not finite'",
        },
    ],
    ids=["a check of the loss", "in a closure", "a check of activations"],
)
def test_replay_yields_values_never_passed_to_backward(tmp_path, words):
    got = helpers.run(tmp_path, steps(**words))
    alarm = got.the_alarm()
    assert got.code == 1 and alarm["capsule"], got.text()
    replayed = helpers.finitude(tmp_path, "replay", alarm["capsule"])
    assert replayed.code == 0 and replayed.out.startswith("identical: 1 of 1 results"), replayed.text()


def test_a_closure_whose_exception_is_caught_leaves_nothing(tmp_path):
    call = """
    try:
        optimizer.step(closure)
    except ValueError:
        print("caught")"""
    got = helpers.run(tmp_path, steps(call=call, loss=LOSS))
    assert got.code == 0 and got.out == "caught\n" and not list(tmp_path.glob("finitude-runs/*/step-*")), got.text()


def test_exception_after_applied_step_belongs_to_that_step(tmp_path):
    got = training(
        tmp_path,
        """
        import os
        for i in range(6):
            x = batches[i]
            logits = model(x)
            if not bool(torch.isfinite(logits).all()):
                raise ValueError("logits are not finite")
            opt.zero_grad()
            (logits / (0.0 if i == 2 else 1.0) - 1).pow(2).mean().backward()
            opt.step()
    """,
        "--on-alarm",
        "warn",
        "--experiments",
        "0",
        "--capsules",
        "0",
    )
    first, second = got.alarms
    assert (first["step"], second["step"], second["weights"]) == (2, 3, "damaged"), got.text()
    assert (
        "itself raised ValueError" in second["text"]
        and "step 2 of this run was bad and was applied" in second["cause"]["text"]
    ), second["cause"]
    assert (
        second["cause"]["class"] == "corrupted-state"
        and second["births"][0]["phase"] == "state"
        and second["births"][0]["name"]
    ), second["births"]
