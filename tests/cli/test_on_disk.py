"""What was printed of an alarm is on disk at that moment: whatever ends the process then, readers find it."""

import json
import random
import re
import signal

import pytest

import helpers

# The process is killed by one that it forked, some time after the first alarm was printed. Each pass of the loop meets a
# bad step.
KILLED = """
import itertools, os, signal, sys, time, torch
me, killer = os.getpid(), os.fork()
if killer == 0:
    until = time.monotonic() + 30
    while b"finitude: " not in open(".stderr", "rb").read() and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(AFTER)
    os.kill(me, SIGNAL)
    os._exit(0)
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in itertools.count():
    opt.zero_grad()
    out = model(torch.ones(2, 4))
    faults = torch.log(out * 0), out / 0, torch.sqrt(-out.abs() - 1), out * float("nan")
    bad = faults[i // 2 % 4] if i % 2 else out
    try:
        bad.mean().backward()
        opt.step()
    except FloatingPointError:
        pass
"""
SIGNALS = [signal.SIGKILL, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM]
REPORTED = [signal.SIGHUP, signal.SIGTERM]  # before the process dies of it
POLICIES = ["skip", "warn", "raise", "stop"]


def killed(after, how):
    return KILLED.replace("AFTER", str(after)).replace("SIGNAL", str(int(how)))


def reported_steps(err):
    """Steps of whose alarms standard error speaks."""
    text = re.sub(r"\s+", " ", err)
    return {int(number) for number in re.findall(r"finitude: (?:stopped |)?[^.]{0,40}?\bstep (\d+)", text)}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (2, 3, 4))])
def test_no_announced_alarm_is_lost(tmp_path, seed):
    """40 kills a seed."""
    draw = random.Random(seed)
    for number in range(40):
        how, policy = draw.choice(SIGNALS), draw.choice(POLICIES)
        folder = tmp_path / str(number)
        folder.mkdir()
        after = draw.random() ** 3 * 0.25
        got = helpers.run(
            folder,
            killed(after, how),
            "--on-alarm",
            policy,
            "--runs",
            "runs",
            "--max-skips",
            "100000",
            "--experiments",
            "0",
            "--capsules",
            draw.choice(["0", "2"]),
        )
        assert got.code == -how or how in REPORTED, (number, got.text())
        printed = reported_steps(got.err)
        assert printed and got.report is not None, (number, how, policy, got.err)
        (inside,) = folder.glob("runs/*/report.json")
        for report in (got.report, json.loads(inside.read_text())):
            missing = printed - {alarm["step"] for alarm in report["alarms"]}
            assert not missing, (number, how, policy, missing, got.err)
            assert "under_way" in report or how in REPORTED, (number, how)


def test_a_killed_run_is_shown_by_each_word(tmp_path):
    options = "--on-alarm", "skip", "--runs", "runs", "--max-skips", "100000"
    helpers.run(tmp_path, killed(0.05, signal.SIGKILL), *options)
    (run,) = (tmp_path / "runs").iterdir()
    listed = helpers.finitude(tmp_path, "list", "runs")
    assert re.match(rf"{run.name}  killed +[0-9]+ steps  [0-9]+ alarms?", listed.out), listed.text()
    shown = helpers.finitude(tmp_path, "report", str(run))
    assert shown.code == 0 and "the run was killed" in shown.out and "aten::log" in shown.out, shown.text()
    assert json.loads(helpers.finitude(tmp_path, "report", "--json", str(run)).out)["outcome"] == "killed"
    examined = helpers.finitude(tmp_path, "doctor", "--static", str(run))
    assert examined.code in (0, 1) and "the run was killed" in examined.err, examined.text()


RUNNING = """
import os, subprocess, sys, torch
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(3):
    opt.zero_grad()
    (model(torch.ones(2, 4)) * (float("nan") if i == ALARM_AT else 1.0)).mean().backward()
    opt.step()
    if i == 2:
        for words in (["list", "runs"], ["report", "--json"], ["doctor", "--static"]):
            at = [] if words[0] == "list" else [os.path.join("runs", os.listdir("runs")[0])]
            done = subprocess.run([*PYTHON, "-m", "finitude", *words, *at], capture_output=True, text=True)
            print(words[0], done.returncode, done.stdout, done.stderr)
"""


def running(alarm_at):
    return RUNNING.replace("ALARM_AT", str(alarm_at)).replace("PYTHON", repr(helpers.warm_python()))


def test_each_command_shows_a_run_in_progress(tmp_path):
    got = helpers.run(tmp_path, running(1), "--on-alarm", "skip", "--runs", "runs")
    assert got.code == 0 and "running" in got.out.split("report 0", 1)[0], got.text()
    assert '"outcome": "running"' in got.out and "the run is in progress" in got.out, got.text()
    assert "under_way" not in got.report and got.report["outcome"] == "alarm"


def test_run_in_progress_without_an_alarm_is_shown(tmp_path):
    got = helpers.run(tmp_path, running(-1).replace('["report", "--json"]', '["report"]'), "--runs", "runs")
    assert got.code == 0 and "running" in got.out.split("report 0", 1)[0], got.text()
    assert "is running: there is no report yet" in got.out, got.text()


PART = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(3):
    opt.zero_grad()
    torch.log(model(torch.ones(2, 4)).abs() * (0.0 if i == 1 else 1.0)).mean().backward()
    opt.step()
"""


def test_leftovers_of_another_run_are_kept_or_reported(tmp_path):
    """A whole capsule without its name gets it; a part of one is removed, and that is said."""
    first = helpers.run(tmp_path, PART, "--runs", "runs")
    capsule = tmp_path / first.the_alarm()["capsule"]
    from finitude.base import alive

    me = alive.me()
    suffix = f".partial-{me['machine']}-4194000-17-0"  # no process of ours has that number and that beginning
    whole, part = (capsule.with_name(f"step-00000{n}{suffix}") for n in (7, 8))
    capsule.rename(whole)
    part.mkdir()
    (part / "tape.bin").write_bytes((whole / "tape.bin").read_bytes()[:100])
    second = helpers.run(tmp_path, PART, "--runs", "runs")
    kept = capsule.with_name("step-000007")
    assert (kept / "capsule.json").is_file() and not whole.exists() and not part.exists(), second.text()
    words = "".join(second.err.split())
    assert f"{kept}:awholecapsule" in words and f"removed{part}" in words, second.text()
    assert helpers.finitude(tmp_path, "replay", str(kept)).code == 0


@pytest.mark.parametrize("where", ["below a file", "a file"])
def test_folder_that_cannot_be_made_is_reported_once(tmp_path, where):
    runs = tmp_path / "runs"
    runs.write_text("x")
    inside = runs / "deeper" if where == "below a file" else runs
    got = helpers.run(tmp_path, PART, "--runs", str(inside), "--on-alarm", "skip")
    assert got.code == 0 and got.err.count("cannot make") == 1, got.text()
    assert got.the_alarm()["step"] == 1 and got.out == ""


def test_full_disk_is_reported_once_and_program_continues(tmp_path):
    """/dev/full is where the report is to go."""
    full = tmp_path / "r.json"
    full.symlink_to("/dev/full")
    got = helpers.finitude(
        tmp_path,
        "run",
        "--report",
        str(full),
        "--runs",
        "runs",
        "--on-alarm",
        "skip",
        str(helpers.write_script(tmp_path, PART + "print('done')\n")),
    )
    assert got.code == 0 and got.out == "done\n" and got.err.count("cannot write") == 1, got.text()


def test_a_failure_in_the_last_explanation_loses_nothing(tmp_path):
    fails = (
        "from finitude.rerun import deferred_restart\ndef fails(*_): raise MemoryError('none "
        "left')\ndeferred_restart.Rest.explain = fails\n"
    )
    got = helpers.run(tmp_path, fails + PART, "--on-alarm", "skip")
    assert got.code == 0 and "none left" in got.err, got.text()
    assert got.the_alarm()["cause"]["class"] == "log-of-zero" and "under_way" not in got.report


def test_level_trace_keeps_trace_capsule_and_tried_fix(tmp_path):
    """Also without --report: in the folder of the run."""
    script = helpers.write_script(tmp_path, PART)
    got = helpers.finitude(tmp_path, "run", "--level", "trace", "--runs", "runs", "--on-alarm", "skip", str(script))
    (inside,) = tmp_path.glob("runs/*/report.json")
    report = json.loads(inside.read_text())
    (alarm,) = report["alarms"]
    assert got.code == 0 and "aten::log" in {op["op"] for op in report["trace"]["ops"]}
    assert alarm["rerun_by"] == "trace" and alarm["fix"]["verified"] is True, got.err
    assert helpers.finitude(tmp_path, "replay", alarm["capsule"]).out.startswith("identical")


@pytest.mark.parametrize(
    ("options", "said"), [(["rollback"], True), (["rollback", "--undo-mb", "64"], False), (["skip"], False)]
)
def test_rollback_without_copies_is_reported_at_start(tmp_path, options, said):
    got = helpers.run(
        tmp_path, "print('begun', flush=True)\n" + PART.replace("i == 1", "False"), "--on-alarm", *options
    )
    assert got.code == 0 and ("has no copies to go back to" in got.err) == said, got.text()
