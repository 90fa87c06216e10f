"""Policies that follow one another: --then and --cool-down."""

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


def test_training_goes_back_where_skips_were_not_enough(tmp_path):
    limits = ("--max-skips", "2", "--then", "rollback", "--rollback-every", "4")
    got = run(tmp_path, loop(20, 21, 22), "--on-alarm", "skip", "--level", "trace", *limits)
    assert got.code == 0 and got.out == "ended True\n", got.text()
    assert [a["action"].partition(" after")[0] for a in got.alarms] == [
        "the step was skipped",
        "the step was skipped",
        "training went back to the state",
    ]
