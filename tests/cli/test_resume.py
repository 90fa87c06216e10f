"""--resume: a run that an alarm stopped is followed by a command that continues from its last good checkpoint."""

import json
import pathlib
import signal

import pytest

from finitude.base import config, skip_list
from finitude.launch import resume
from helpers import finitude, write_script

TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
begun = 0
if "--from" in sys.argv:
    kept = torch.load(sys.argv[sys.argv.index("--from") + 1])
    model.load_state_dict(kept["model"]); begun = kept["step"] + 1
print("begun at", begun, flush=True)
for i in range(begun, 8):
    opt.zero_grad()
    loss = model(torch.ones(2, 4)).pow(2).mean()
    if i in {bad}: loss = loss * float("nan")
    loss.backward()
    opt.step()
    if i in {saved}: torch.save({{"model": model.state_dict(), "step": i}}, f"a checkpoint {{i}}.pt")
print("ended", flush=True)
"""
COMMAND = 'train.py --from {checkpoint} "skip={samples}"'


def resumed(folder, *options, bad=(5,), saved=(1, 3), command=COMMAND):
    write_script(folder, TRAIN.format(bad=bad, saved=saved))
    options = ("--resume", command, "--experiments", "0", "--capsules", "0", "--level", "trace", *options)
    return finitude(folder, "run", *options, "train.py", cold=True)


def none(run):
    return []


def events(folder):
    lines = [p.read_text().splitlines() for p in sorted(pathlib.Path(folder).glob("finitude-runs/*/events.jsonl"))]
    return [e for e in map(json.loads, sum(lines, [])) if e["kind"] == "resume"]


@pytest.mark.slow
def test_stopped_run_goes_on_until_the_limit(tmp_path):
    got = resumed(tmp_path, "--resume-times", "1")
    assert (got.code, got.out) == (1, "begun at 0\nbegun at 4\n"), got.text()
    checkpoint = str(tmp_path / "a checkpoint 3.pt")
    assert f"--resume, 1 of 1: train.py --from '{checkpoint}' skip=\n" in got.err, got.text()
    assert "started again 1 times" in got.err
    (event,) = events(tmp_path)
    assert event["checkpoint"] == checkpoint and event["step"] == 5
    assert list(tmp_path.glob(f"finitude-runs/*-{event['pid']}/report.json"))


@pytest.mark.slow
def test_without_a_good_checkpoint_code_is_kept(tmp_path):
    got = resumed(tmp_path, saved=())
    assert (got.code, got.out) == (1, "begun at 0\n") and "wrote no checkpoint that is good" in got.err, got.text()


@pytest.mark.parametrize("code", [0, 3, -signal.SIGTERM])
def test_ends_without_alarm_pass_through(tmp_path, monkeypatch, code):
    monkeypatch.setattr(resume.supervise, "wait", lambda command, environment, directory, note: note(1) or code)
    left = []
    monkeypatch.setattr(resume.supervise, "leave", left.append)
    resume.main(str(tmp_path), resume.Wanted("x {checkpoint}", None, [], ["x"]), False, none, [])
    assert left == [code]


def test_alarm_is_followed_by_command_with_checkpoint(tmp_path, monkeypatch):
    good = tmp_path / "good.pt"
    good.touch()
    alarm = {"policy": "stop", "harmless": False, "step": 5, "births": [{"samples": [7, 3, None]}], "cause": None}
    commands, before = [], []

    def wait(command, environment, directory, note):
        commands.append(command[4:])
        before.append(environment.get("FINITUDE_RESUMED_FROM"))
        folder = tmp_path / f"run-{len(commands)}"
        folder.mkdir()
        document = {"alarms": [alarm], "checkpoints": {"last_good": {"checkpoint": str(good), "step": 1}}}
        (folder / "report.json").write_text(json.dumps(document if len(commands) == 1 else {"alarms": []}))
        note(len(commands))
        return 1

    monkeypatch.setattr(resume.supervise, "wait", wait)
    monkeypatch.setattr(resume.supervise, "leave", lambda code: None)
    wanted = resume.Wanted("go {checkpoint} --skip={samples}", "2", ["--quiet"], ["train.py"])
    resume.main(str(tmp_path), wanted, False, none, [])
    assert commands == [["--quiet", "train.py"], ["--quiet", "go", str(good), "--skip=3,7"]]
    assert before == [None, str(tmp_path / "run-1")]


def test_rows_of_bad_steps_are_skipped_from_then_on(tmp_path, monkeypatch):
    good = tmp_path / "good.pt"
    good.touch()
    alarm = {"policy": "stop", "harmless": False, "step": 5, "births": [], "cause": None}
    commands = []

    def wait(command, environment, directory, note):
        commands.append(command[4:])
        folder = tmp_path / f"run-{len(commands)}"
        folder.mkdir()
        document = {"alarms": [alarm], "checkpoints": {"last_good": {"checkpoint": str(good), "step": 1}}}
        (folder / "report.json").write_text(json.dumps(document if len(commands) < 3 else {"alarms": []}))
        note(len(commands))
        return 1

    def rows(run):
        number = int(run[-1])
        if number == 2:
            raise ValueError("it has no rows")
        return [skip_list.Skipped("Texts", 9, [number])]

    monkeypatch.setattr(resume.supervise, "wait", wait)
    monkeypatch.setattr(resume.supervise, "leave", lambda code: None)
    wanted = resume.Wanted("go {checkpoint} {rows}", "3", ["-q"], ["x"], skips_rows=True)
    resume.main(str(tmp_path), wanted, False, rows, [skip_list.Skipped("Texts", 9, [7])])
    files = [str(tmp_path / f"run-{number}" / "skip-rows.jsonl") for number in (1, 2)]
    assert commands[1:] == [["-q", "--skip-rows", file, "go", str(good), file] for file in files]
    assert [[one.ids for one in skip_list.read(file)] for file in files] == [[[1, 7]], [[1, 7]]]


def test_words_of_resume_are_taken_out():
    words = [
        "--restart-args",
        "--resume",
        "--resume",
        "a b",
        "-q",
        "--resume-skip-rows",
        "--resume-times=2",
        "--runs=x",
        "--",
    ]
    assert resume.without(words, ("--quiet", "--resume-skip-rows")) == [
        "--restart-args",
        "--resume",
        "-q",
        "--runs=x",
        "--",
    ]


@pytest.mark.parametrize(
    "template, times, said",
    [("x", None, "{checkpoint} in it"), ("'{checkpoint}", None, "split into words"), ("{checkpoint}", "x", "whole")],
)
def test_wrong_values_are_refused(template, times, said):
    with pytest.raises(config.UsageError, match=said.replace("{", r"\{")):
        resume.Wanted(template, times, [], ["x"])
