"""What is done about a bad step: stop, skip, warn, raise, and their limits."""

import json

import pytest

from helpers import TRAINING, run

LOOP = (
    TRAINING
    + """
import math
for i, x in enumerate(batches * 3):
    opt.zero_grad()
    loss = loss_of(x)
    if i in BAD: loss = loss * NAN
    loss.backward()
    opt.step()
    print(i)
print("ended", finite())
"""
)


def loop(*bad):
    return LOOP.replace("BAD", repr(tuple(bad)))


def test_stop_explains_the_step_and_raises_from_step(tmp_path):
    got = run(tmp_path, loop(4))
    assert (got.code, got.out) == (1, "0\n1\n2\n3\n"), got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"], alarm["weights"]) == (4, "persistent", "rewind", "clean")
    assert "loss * NAN" in alarm["births"][0]["source"]
    trace = got.err[got.err.index("Traceback") :].splitlines()
    assert trace[-1].startswith("finitude.errors.NonFiniteError: ") or trace[-1].startswith("finitude.NonFiniteError: ")
    assert any("opt.step()" in line for line in trace)


def test_stop_is_the_default_policy(tmp_path):
    alarm = run(tmp_path, loop(4)).alarms[0]
    assert (alarm["policy"], alarm["level"]) == ("stop", "gate")


def test_raise_stops_at_once_and_runs_nothing_again(tmp_path):
    got = run(tmp_path, loop(4), "--on-alarm", "raise")
    assert (got.code, got.out) == (1, "0\n1\n2\n3\n"), got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"], alarm["weights"]) == (4, "not-run", "none", "clean")


def test_warn_reports_and_applies_the_step(tmp_path):
    got = run(tmp_path, loop(16), "--on-alarm", "warn", "--level", "trace")
    assert got.code == 0 and got.out.endswith("17\nended False\n"), got.text()
    first = got.alarms[0]
    assert (first["step"], first["weights"], first["policy"]) == (16, "damaged", "warn")
    # The weights are NaN from then on, so the step after it is bad as well.
    assert [a["step"] for a in got.alarms] == [16, 17]


def test_skip_leaves_bad_steps_out_and_numbers_them(tmp_path):
    got = run(tmp_path, loop(2, 5, 9), "--on-alarm", "skip")
    assert got.code == 0 and got.out.endswith("17\nended True\n"), got.text()
    assert [a["step"] for a in got.alarms] == [2, 5, 9] and {a["weights"] for a in got.alarms} == {"clean"}
    assert got.watched["steps"] == 18 and got.watched["backward_calls"] == 18, got.text()


def test_skip_stops_after_max_skips_in_a_row(tmp_path):
    got = run(tmp_path, loop(*range(3, 18)), "--on-alarm", "skip", "--max-skips", "4", "--level", "trace")
    assert got.code == 1 and "NonFiniteError" in got.err, got.text()
    assert got.out.splitlines() == [str(i) for i in range(3 + 4)]
    assert [a["step"] for a in got.alarms] == [3, 4, 5, 6, 7]


def test_skip_stops_after_ten_consecutive_steps_by_default(tmp_path):
    got = run(tmp_path, loop(*range(3, 18)), "--on-alarm", "skip", "--level", "trace")
    assert got.code == 1 and got.out.splitlines() == [str(i) for i in range(3 + 10)], got.text()


def test_a_good_step_between_starts_the_count_again(tmp_path):
    got = run(tmp_path, loop(1, 2, 4, 5, 7, 8), "--on-alarm", "skip", "--max-skips", "2", "--level", "trace")
    assert got.code == 0 and got.out.endswith("ended True\n"), got.text()
    assert [a["step"] for a in got.alarms] == [1, 2, 4, 5, 7, 8]


@pytest.mark.parametrize(
    "limit, words",
    [
        (("--max-bad", "2"), "bad steps: 3, and --max-bad lets 2 pass"),
        (("--max-bad-share", "0.1/20"), "bad steps of the last 20: 3, and --max-bad-share lets a share of 0.1 pass"),
    ],
)
def test_limits_on_all_bad_steps(tmp_path, limit, words):
    got = run(tmp_path, loop(1, 4, 7, 10), "--on-alarm", "skip", "--level", "trace", *limit)
    assert got.code == 1 and [a["step"] for a in got.alarms] == [1, 4, 7], got.text()
    assert got.alarms[-1]["text"].endswith(words) and words in " ".join(got.err.split()), got.text()


def test_max_skips_of_zero_stops_at_the_first(tmp_path):
    got = run(tmp_path, loop(3), "--on-alarm", "skip", "--max-skips", "0", "--level", "trace")
    assert got.code == 1 and got.out.splitlines() == ["0", "1", "2"], got.text()


def test_random_numbers_of_bad_step_are_eventually_redrawn(tmp_path):
    """The weight of the last noise level is 0 / 0. The two steps after the first bad one draw the same levels, as a
    loop that said `continue` would; the one after those draws on."""
    got = run(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 4)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        snr = torch.linspace(1, 0, 9)
        seen = []
        for x in DataLoader(torch.randn(48, 4), 4, shuffle=True):
            t = torch.randint(0, 9, (2,))
            seen.append(t.tolist())
            loss = ((snr[t].clamp(max=0.5) / snr[t]).mean() * (net(x) - x).pow(2)).mean()
            opt.zero_grad(); loss.backward(); opt.step()
        print(seen)
    """,
        "--on-alarm",
        "skip",
    )
    assert got.code == 0, got.text()
    seen = json.loads(got.out)
    bad = [i for i, t in enumerate(seen) if 8 in t]
    assert bad and [a["step"] for a in got.alarms] == bad, got.text()
    first = bad[0]
    assert seen[first + 1] == seen[first + 2] == seen[first] != seen[first + 3], seen


def test_rollback_leaves_the_step_out_like_skip(tmp_path):
    got = run(tmp_path, loop(3), "--on-alarm", "rollback", "--level", "trace")
    assert got.code == 0 and got.out.endswith("ended True\n"), got.text()
    assert got.the_alarm()["weights"] == "clean"


SEVERAL = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
batches = torch.rand(14, 8, 4) + 0.1
batches[3, 2] = 0
batches[9, 5] = 0
def step(x):
    opt.zero_grad()
    weight = torch.log(x.sum(1))
    loss = (model(x).squeeze(1) * weight).mean()
    if STEP == 12: loss = loss + torch.sqrt(x[0, 0] - 5)
    loss.backward()
    opt.step()
STEP = 0
LOOP
print("ended", all(p.isfinite().all().item() for p in model.parameters()))
"""


def test_every_step_rerunnable_in_place_is_explained(tmp_path):
    """The second fails as the first did, on another sample; the third at another line."""
    got = run(
        tmp_path,
        SEVERAL.replace("LOOP", "for STEP in range(len(batches)):\n    step(batches[STEP])"),
        "--on-alarm",
        "skip",
    )
    first, second, third = got.alarms
    assert got.code == 0 and got.out == "ended True\n", got.text()
    assert [
        (
            a["step"],
            a["rerun_by"],
            a["rerun_verified"],
            a["births"][0]["op"],
            a["births"][0]["rows"],
            a["cause"]["class"],
        )
        for a in (first, second)
    ] == [(step, "rewind", True, "aten::log", [row], "log-of-zero") for step, row in ((3, 2), (9, 5))]
    assert (third["step"], third["births"][0]["op"], third["cause"]["class"]) == (
        12,
        "aten::sqrt",
        "negative-domain",
    ), third
    assert "step 9: loss is Inf, the step was skipped; born as in step 3: aten::log at train.py:" in got.err, got.err
    assert ", row 5\n" in got.err and got.err.count("born in forward") == 2, got.err
    assert all(a["capsule"] and a["fix"]["verified"] for a in got.alarms), got.text()


def test_eight_are_explained_in_place(tmp_path):
    got = run(tmp_path, loop(*range(1, 18, 2)), "--on-alarm", "skip")
    assert [bool(a["births"]) for a in got.alarms] == [True] * 8 + [False], got.text()
    assert got.alarms[-1]["cause"]["text"] == "not run again; step 15 failed at the same loss and is explained"


def test_of_a_row_the_first_is_explained(tmp_path):
    got = run(tmp_path, loop(*range(1, 12)), "--on-alarm", "skip", "--max-skips", "20")
    assert [bool(a["births"]) for a in got.alarms] == [True] + [False] * 10, got.text()
    assert (
        got.alarms[-1]["cause"]["text"] == "at the same sink as step 1, which is explained; this step was not run again"
    )


def test_non_rerunnable_steps_name_the_similar_earlier_one(tmp_path):
    got = run(tmp_path, SEVERAL.replace("LOOP", "list(map(step, batches))"), "--on-alarm", "skip")
    first, second = got.alarms
    assert first["births"] and first["rerun_by"] == "restart", got.text()
    assert (second["rerun_by"], second["rerun_verified"], second["cause"]["class"]) == (
        "restart",
        True,
        "log-of-zero",
    ), second
    assert "a second process is started for the first of its kind" in second["rerun_text"], second["rerun_text"]


def test_program_ending_in_error_is_not_restarted_later(tmp_path):
    got = run(
        tmp_path, SEVERAL.replace("LOOP", "list(map(step, batches))\nraise RuntimeError('done')"), "--on-alarm", "skip"
    )
    second = got.alarms[1]
    assert (second["rerun_by"], second["cause"]["class"], second["births"]) == ("none", "unknown", []), second
    assert second["cause"]["text"] == "not run again; step 3 failed at the same loss and is explained"
    assert second["rerun_text"].endswith("a second process is started for the first of its kind"), second["rerun_text"]


def test_only_same_sink_and_optimizer_counts_as_similar():
    from finitude._native import Known
    from finitude.report.incident import NOT_RUN
    from finitude.report.new_alarms import Damage
    from finitude.rerun.alarm_correlation import RecentAlarms

    def alarm(step, name, births=()):
        return {
            "step": step,
            "optimizer": "SGD",
            "sink": {"kind": "gradient", "name": name},
            "births": list(births),
            "cause": {"class": "unknown", "text": NOT_RUN},
        }

    recent = RecentAlarms(None, None, None, Damage(), Known(), None)
    recent.point_back(0, alarm(3, "weight", [{"op": "aten::log", "outputs": []}]))
    for ordinal, name, is_alike in ((0, "weight", True), (0, "bias", False)):
        later = alarm(5, name)
        recent.point_back(ordinal, later)
        assert (later["cause"]["text"] != NOT_RUN) == is_alike, later
        assert not is_alike or "step 3 failed at the same gradient weight" in later["cause"]["text"]
    other = {**alarm(6, "weight"), "cause": {"class": "unknown", "text": "what wrote weight was not seen"}}
    recent.point_back(0, other)
    assert other["cause"]["text"] == "what wrote weight was not seen"


CATCH = (
    TRAINING
    + """
import finitude
caught = []
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i in (2, 4): loss = loss * NAN
    loss.backward()
    try:
        opt.step()
    except FloatingPointError as e:
        caught.append(e)
print([type(e) is finitude.NonFiniteError for e in caught], [e.report["step"] for e in caught],
      [e.report["sink"]["kind"] for e in caught], finite())
"""
)


@pytest.mark.parametrize("policy", ["stop", "raise"])
def test_swallowed_floating_point_error_with_report_comes_again(tmp_path, policy):
    got = run(tmp_path, CATCH, "--on-alarm", policy)
    assert (got.code, got.out) == (0, "[True, True] [2, 4] ['loss', 'loss'] True\n"), got.text()
    assert [(a["step"], a["micro_batch"]) for a in got.alarms] == [(2, 0), (4, 0)]


@pytest.mark.parametrize("policy", ["stop", "raise"])
def test_buffers_are_restored_before_the_error_is_raised(tmp_path, policy):
    # A script that catches it and writes a last checkpoint must not save poisoned running statistics.
    got = run(
        tmp_path,
        TRAINING
        + """
net = nn.Sequential(nn.BatchNorm1d(4), model)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i, x in enumerate(batches):
    opt.zero_grad()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    (net(x * (NAN if i == 3 else 1)) - 1).pow(2).mean().backward()
    try:
        opt.step()
    except FloatingPointError:
        print(i, [k for k, v in net.state_dict().items() if not torch.equal(v, before[k])])
        break
""",
        "--on-alarm",
        policy,
    )
    assert (got.code, got.out) == (0, "3 []\n"), got.text()


def test_stopped_run_output_matches_unwatched_until_alarm(tmp_path):
    got = run(tmp_path, loop(4))
    healthy = run(tmp_path, loop())
    assert healthy.out.startswith(got.out)
    assert got.err.startswith("finitude: step 4 stopped before the optimizer: loss is NaN")


def test_what_the_second_run_prints_is_not_seen(tmp_path):
    text = loop(4).replace(
        "opt.zero_grad()", "opt.zero_grad(); print('in', i, flush=True); sys.stderr.write('to stderr\\n')"
    )
    got = run(tmp_path, "import sys" + text)
    assert got.out.splitlines() == [line for i in range(5) for line in (f"in {i}", str(i))][:9], got.text()
    assert got.err.count("to stderr") == 5 and got.alarms[0]["rerun_by"] == "rewind"


def test_repeated_bad_steps_print_one_line_then_counted(tmp_path):
    got = run(tmp_path, loop(*range(2, 18)).replace("batches * 3", "batches * 6"), "--on-alarm", "warn")
    assert len(got.alarms) == 34
    again = [
        line for line in got.err.splitlines() if line.startswith("finitude: step ") and "loss is NaN, reported" in line
    ]
    assert len(again) == 10 and again[-1].endswith("further ones are only counted"), got.err


def test_damaged_weights_are_not_called_safe(tmp_path):
    got = run(
        tmp_path,
        TRAINING
        + """
class Root(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 3:
            model.bias.data.sub_(model.bias.data + 1).log_()
opt = Root(model.parameters(), lr=0.1)
for x in batches:
    opt.zero_grad()
    loss = loss_of(x)
    loss.backward()
    opt.step()
""",
        "--on-alarm",
        "skip",
    )
    assert {a["weights"] for a in got.alarms} == {"damaged"}, got.text()
    assert "not in danger" not in got.err and got.alarms[0]["step"] == 2


def test_report_lists_1000_alarms_and_counts_the_rest(tmp_path):
    got = run(tmp_path, loop(*range(2, 18)).replace("batches * 3", "batches * 170"), "--on-alarm", "warn")
    assert len(got.alarms) == 1000 and "1018 alarms" in got.err, got.err[-500:]
    assert [a["text"] for a in got.advisories("alarms-left-out")] == [
        "18 alarms more than a report holds are not listed"
    ]
    assert got.report["alarms_unlisted"] == 18


STREAMS = {
    "a StringIO": "own = io.StringIO()",
    "a file": "own = open('own.txt', 'w+')",
    "a class": "class Own(io.StringIO):\n    def write(self, s): return super().write(s)\nown = Own()",
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_custom_output_stream_gets_step_output_once(tmp_path, stream):
    text = (
        "import io, sys\n"
        + stream
        + loop(4)
        .replace("for i, x", "sys.stdout = own\nfor i, x")
        .replace(
            'print("ended"',
            "sys.stdout = sys.__stdout__\nown.seek(0)\n"
            'print(own.read().split() == [str(n) for n in range(18)])\nprint("ended"',
        )
    )
    got = run(tmp_path, text, "--on-alarm", "skip")
    assert (got.code, got.out) == (0, "True\nended True\n"), got.text()
    assert got.the_alarm()["rerun_by"] == "rewind"


@pytest.mark.parametrize("in_place", [True, False])
def test_step_after_applied_bad_one_blames_its_weights(tmp_path, in_place):
    """Also where it takes a second process to run it again, which meets other bad values first."""
    loop = "for i in range(6):\n    x = todo[i]" if in_place else "i = -1\nwhile todo:\n    i, x = i + 1, todo.pop(0)"
    got = run(tmp_path, HEAD_OF_WARN.replace("LOOP", loop), "--on-alarm", "warn")
    first, then = got.alarms[:2]
    assert (first["step"], first["cause"]["class"], then["step"]) == (3, "domain-edge", 4), got.text()
    assert then["rerun_by"] == ("rewind" if in_place else "restart") and then["weights"] == "damaged", got.text()
    assert then["births"][0]["phase"] == "state" and then["cause"]["class"] == "corrupted-state", got.text()
    assert "weight h" in then["cause"]["text"] and "before the step began" in then["cause"]["text"], then["cause"][
        "text"
    ]


HEAD_OF_WARN = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
todo = [torch.randn(4, 3) for _ in range(6)]
LOOP
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    if i == 3: loss = loss + (model.weight - model.weight.detach()).sqrt().sum()
    loss.backward()
    opt.step()
"""


FOLDS = """
import torch

def fold(n):
    net = torch.nn.Linear(3, 1)
    opt = (torch.optim.SGD if n < 2 else torch.optim.RMSprop)(net.parameters(), 1e-3)
    def step(i):
        x = torch.ones(4, 3)
        loss = (net(x) / (0.0 if i == 2 else 1.0)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    list(map(step, range(4)))     # nothing in it is run again in place

torch.manual_seed(0)
for n in range(3):
    fold(n)
"""


def test_unexplained_alarm_names_similar_one_of_other_optimizer(tmp_path):
    got = run(tmp_path, FOLDS, "--on-alarm", "skip")
    first, *others = got.alarms
    assert first["births"] and [a["rerun"] for a in others] == ["persistent", "not-run"], (
        got.text()
    )  # the second when the program had ended
    assert (
        others[1]["cause"]["text"]
        == "not run again, as few steps of a kind are; that a loss of SGD was bad at its step 2 is explained"
    )
