"""Policies that follow one another: --then and --cool-down."""

import json

import pytest

from finitude.session import policy_state
from helpers import TRAINING, run

LOOP = (
    TRAINING
    + """
for i, x in enumerate(batches * 5):
    opt.zero_grad()
    loss = loss_of(x)
    if i in BAD: loss = loss * NAN
    loss.backward()
    opt.step()
print("ended", finite())
"""
)


def loop(*bad):
    return LOOP.replace("BAD", repr(tuple(bad)))


def test_another_policy_follows_many_in_a_row(tmp_path):
    limits = ("--max-skips", "2", "--then", "rollback,raise")
    got = run(tmp_path, loop(1, 2, 3, 4, 5, 6), "--on-alarm", "skip", "--level", "trace", *limits)
    assert got.code == 1 and [a["step"] for a in got.alarms] == [1, 2, 3, 4, 5], got.text()
    assert got.alarms[2]["text"].endswith("more than 2; from here on rollback"), got.text()
    assert got.alarms[4]["text"].endswith("more than 2; from here on raise"), got.text()


def test_then_follows_only_policies_that_skip(tmp_path):
    got = run(tmp_path, loop(), "--on-alarm", "warn", "--then", "stop")
    assert "--then has no effect with --on-alarm warn" in " ".join(got.err.split()), got.text()


RATES = LOOP.replace("    opt.step()", "    opt.step()\n    scheduler.step()").replace(
    "for i, x", "scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1.0)\nfor i, x"
)


@pytest.mark.parametrize("every", [0, 4], ids=["skips", "rollback"])
def test_rate_is_lowered_once_for_a_row(tmp_path, every):
    limits = ("--max-skips", "2", "--then", "lower-rate,rollback", "--lower-rate-factor", "0.25")
    text = RATES.replace("BAD", "(20, 21, 22, 23, 24)") + "print(opt.param_groups[0]['lr'] / RATE)\n"
    text = text.replace("for i, x", "RATE = opt.param_groups[0]['lr']\nfor i, x", 1)
    got = run(tmp_path, text, "--on-alarm", "skip", "--level", "trace", *limits, "--rollback-every", str(every))
    # A copy that training goes back to is older than the lower rate, which stays.
    assert got.code == 0 and got.out == "ended True\n0.25\n", got.text()
    skipped, lowered = "the step was skipped", "the step was skipped, and the learning rate is 0.25 times what it was"
    actions = [a["action"].partition(" to the state")[0] for a in got.alarms]
    assert actions == [skipped, skipped, lowered, skipped, "training went back" if every else skipped]
    counts = "4 bad steps skipped, rolled back 1 time" if every else "5 bad steps skipped"
    assert f"5 alarms, {counts}, learning rate lowered 1 time" in got.err, got.text()
    lines = next(got.folder.glob("finitude-runs/*/events.jsonl")).read_text().splitlines()
    events = [e for e in map(json.loads, lines) if e["kind"] == "lower-rate"]
    assert [(e["step"], e["lr_factor"]) for e in events] == [(22, 0.25)]


def test_a_resumed_run_continues_the_counts(tmp_path):
    first = run(
        tmp_path, loop(2, 5, 6), "--on-alarm", "skip", "--max-bad", "2", "--capsules", "0", "--experiments", "0"
    )
    assert first.code == 1 and [a["step"] for a in first.alarms] == [2, 5, 6], first.text()
    folder = next(first.folder.glob("finitude-runs/*/policy.json")).parent
    options = ("--on-alarm", "skip", "--max-bad", "4", "--capsules", "0", "--experiments", "0", "--runs", "later")
    second = run(tmp_path, loop(0, 3), *options, env={"FINITUDE_RESUMED_FROM": str(folder)})
    assert second.code == 1 and [a["step"] for a in second.alarms] == [0, 3], second.text()
    assert second.alarms[1]["text"].endswith("bad steps: 5, and --max-bad lets 4 pass"), second.text()


def policy_file(folder, **changed):
    one = {"optimizer": 0, "in_a_row": 2, "total": 5, "stage": 0, "steps_ago": [3, 0]} | changed
    (folder / "policy.json").write_text(json.dumps({"schema": 1, "ends": True, "optimizers": [one]}))
    return str(folder / "policy.json")


def test_counts_of_a_file_are_read(tmp_path):
    assert policy_state.read(policy_file(tmp_path)) == ([(0, 2, 5, 0, [3, 0])], 0)


@pytest.mark.parametrize("change", [{"total": -1}, {"stage": 2**40}, {"steps_ago": [True]}, {"in_a_row": "2"}])
def test_damaged_counts_are_refused(tmp_path, change):
    with pytest.raises(ValueError, match="no counts"):
        policy_state.read(policy_file(tmp_path, **change))


def test_training_goes_back_where_skips_were_not_enough(tmp_path):
    limits = ("--max-skips", "2", "--then", "rollback", "--rollback-every", "4")
    got = run(tmp_path, loop(20, 21, 22), "--on-alarm", "skip", "--level", "trace", *limits)
    assert got.code == 0 and got.out == "ended True\n", got.text()
    assert [a["action"].partition(" after")[0] for a in got.alarms] == [
        "the step was skipped",
        "the step was skipped",
        "training went back to the state",
    ]
