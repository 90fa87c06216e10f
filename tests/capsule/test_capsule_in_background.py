"""Where training goes on after a bad step, its capsule is written, read back and replayed beside it."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import torch

import helpers
from finitude import _native
from finitude.base import alive
from finitude.capsules import capsule
from finitude.effects import files

# The loss is bad at the steps in BAD, gradients alone at those in GRADIENTS: of each kind one is run again. AT_ONCE
# runs right behind a bad step, while its capsule is being written.
SCRIPT = """
import glob, os, random, signal, sys, time
import torch
from torch import nn
torch.manual_seed(1)
random.seed(1)
data = [torch.rand(8, 6) for _ in range(8)]
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
drawn = []
def there():
    return sorted(os.path.basename(p) for p in glob.glob("finitude-runs/*/step-*"))
def train():
    for i in range(8):
        x = data[i]
        if i in BAD:
            x = x.clone()
            x[2] = 0
        optimizer.zero_grad()
        loss = (torch.log(x.sum(1, keepdim=True)) * model(x)).mean()
        if i in GRADIENTS:  # the loss stays what it is
            loss = loss + torch.sqrt((model[0].weight * 0).sum())
        loss.backward()
        STATE
        optimizer.step()
        if i in BAD or i in GRADIENTS:
            AT_ONCE
        drawn.append((torch.rand(1).item(), random.random(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()))
train()
END
"""


def script(bad=(3,), gradients=(), at_once="pass", state="pass", end=""):
    return (
        SCRIPT.replace("BAD", repr(tuple(bad)))
        .replace("GRADIENTS", repr(tuple(gradients)))
        .replace("AT_ONCE", at_once)
        .replace("STATE", state)
        .replace("END", end)
    )


def run(folder, text, *options, **more):
    return helpers.run(folder, text, "--on-alarm", "skip", *options, **more)


def about_of(folder, alarm):
    return json.loads((folder / alarm["capsule"] / "capsule.json").read_text())


def test_training_continues_during_write_and_report_has_outcome(tmp_path):
    got = run(tmp_path, script(at_once="print(there())"))
    alarm = got.the_alarm()
    assert got.code == 0, got.text()
    assert "being written; then:" in " ".join(got.err.split()), got.err
    assert "capsule_pending" not in alarm and got.watched["not_watched"] == [], got.text()
    about = about_of(tmp_path, alarm)
    assert about["replay"] == "identical" and about["alarm"] == {**alarm, "capsule": None}
    assert sorted(p.name for p in (tmp_path / alarm["capsule"]).iterdir()) == [
        "capsule.json",
        "start.safetensors",
        "statistics.bin",
        "tape.bin",
        "tensors.safetensors",
    ]
    assert helpers.finitude(tmp_path, "replay", alarm["capsule"]).out.startswith("identical")


@pytest.mark.parametrize("policy", ["skip", "warn"])
def test_training_goes_the_way_it_goes_without(tmp_path, policy):
    end = (
        "print([p.detach().double().sum().item().hex() for p in model.parameters()], drawn, "
        "[float(v['exp_avg'].sum()) for v in optimizer.state.values()])"
    )
    texts = []
    for options in (["--capsules", "3"], ["--capsules", "0"]):
        folder = tmp_path / options[1]
        folder.mkdir()
        got = helpers.run(folder, script(bad=(2,), gradients=(5,), end=end), "--on-alarm", policy, *options)
        assert len(list(folder.glob("finitude-runs/*/step-*"))) == (
            {"skip": 2, "warn": 1}[policy] if options[1] == "3" else 0
        ), got.text()
        texts.append(got.out)
    assert texts[0] == texts[1] and texts[0]


def test_capsule_holds_start_state_while_training_continues(tmp_path):
    """The state of the optimizer is no part of the tape: it is copied while the program waits."""
    safetensors = pytest.importorskip("safetensors.torch")
    # no operator
    state = "globals().update(kept=[v['exp_avg'].numpy().copy() for v in optimizer.state.values()] if i == 3 else kept)"
    end = (
        "torch.save([torch.as_tensor(k) for k in kept], 'state.pt'); print(kept[0].sum() != "
        "optimizer.state[model[0].weight]['exp_avg'].sum().item())"
    )
    got = run(tmp_path, script(state=state, end=end).replace("drawn = []", "drawn, kept = [], None"))
    assert got.out == "True\n", got.text()
    held = safetensors.load_file(tmp_path / got.the_alarm()["capsule"] / "start.safetensors")
    expected = torch.load(tmp_path / "state.pt")
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert len(expected) == 6
    for name, value in zip(names, expected):
        assert torch.equal(held[f"state.{name}.exp_avg"], value) and value.abs().sum() > 0, name


@pytest.mark.parametrize("keep", [1, 2])
def test_several_at_once_and_only_so_many_stay(tmp_path, keep):
    got = run(tmp_path, script(bad=(3,), gradients=(4,)), "--capsules", str(keep))
    found = sorted(p.name for p in tmp_path.glob("finitude-runs/*/step-*"))
    assert found == ["step-000003", "step-000004"][-keep:], got.text()
    assert [a["capsule"] and os.path.basename(a["capsule"]) for a in got.alarms] == [
        None if keep == 1 else "step-000003",
        "step-000004",
    ]
    reported = ["its capsule was removed by --capsules" in a["rerun_text"] for a in got.alarms]
    assert reported == [keep == 1, False] and got.watched["not_watched"] == [], got.text()
    assert not any("capsule_pending" in a for a in got.alarms)
    assert about_of(tmp_path, got.alarms[1])["replay"] == "identical"


@pytest.mark.parametrize(
    "at_once, by_interpreter",
    [
        ("os._exit(7)", False),
        ("os.kill(os.getpid(), signal.SIGTERM)", False),
        ("raise ValueError('x')", True),
        *(
            pytest.param(text, True, marks=pytest.mark.thorough)
            for text in (
                "sys.exit(7)",
                "raise KeyboardInterrupt",
                "os.kill(os.getpid(), signal.SIGINT); time.sleep(30)",
            )
        ),
    ],
)
def test_pending_write_finishes_however_the_program_ends(tmp_path, replays, at_once, by_interpreter):
    got = run(tmp_path, script(at_once=at_once), cold=by_interpreter)  # one that is forked has no interpreter's end
    assert got.code != 0 and about_of(tmp_path, got.alarms[0])["replay"] in (
        "identical",
        "not tried (the program ended)",
    ), got.text()
    assert not any("capsule_pending" in a for a in got.alarms)
    assert not list(tmp_path.glob("finitude-runs/*/*.partial-*"))


def test_a_child_that_is_forked_meanwhile_disturbs_nothing(tmp_path):
    fork = "pid = os.fork()\n            if pid == 0: os._exit(3)\n            print(os.waitpid(pid, 0)[1] >> 8)"
    got = run(tmp_path, script(at_once=fork))
    assert got.out == "3\n" and got.code == 0 and about_of(tmp_path, got.the_alarm())["replay"] == "identical", (
        got.text()
    )


def test_leftovers_of_killed_writer_are_removed_next_run(tmp_path):
    """A part of a capsule, by a process that is gone; what a living one or another machine's may be writing stays."""
    run(tmp_path, script())
    (runs,) = tmp_path.glob("finitude-runs/*")
    left = [
        runs / f"step-000001.partial-{alive.me()['machine']}-4194000-17-0"
    ]  # no process has that number and beginning
    left[0].mkdir()
    assert files.OF_CAPSULES.search(f"{left[0]}/tape.bin")
    living = left[0].with_name(
        "step-000001.partial-"
        + "-".join([*left[0].name.split(".partial-")[1].split("-")[:1], str(os.getpid()), start_ticks(), "0"])
    )
    elsewhere = left[0].with_name(left[0].name.replace(".partial-", ".partial-f"))
    for folder in (living, elsewhere):
        folder.mkdir()
    for options in (["skip"], ["stop"]):
        got = helpers.run(tmp_path, script(), "--on-alarm", *options)
        assert about_of(tmp_path, got.the_alarm())["replay"] == "identical"
        assert f"removed{left[0]}:" in "".join(got.err.split()), got.text()
        assert not left[0].exists() and living.exists() and elsewhere.exists(), options
        left[0].mkdir()


def start_ticks():
    return pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


FULL = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
"""


SLOW = """
import signal, threading, time
from finitude.capsules import capsule
capsule.PLAYER = PLAYER  # takes its time, so that the first capsule is not finished as the second comes
def interrupt():
    while sum("-------" in line for line in open("began")) < 1:
        time.sleep(0.05)
    time.sleep(1)
    signal.raise_signal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
"""


def test_ctrl_c_ends_the_wait_for_room(tmp_path):
    """The second capsule waits for the memory that the first one holds; whoever presses Ctrl-C then gets the prompt
    back."""
    player = tmp_path / "player.sh"
    player.write_text("#!/bin/sh\nexec sleep 60\n")
    player.chmod(0o755)
    (tmp_path / "began").write_text("")
    text = SLOW.replace("PLAYER)", repr(str(player)) + ")").replace("= PLAYER", "= " + repr(str(player)))
    body = script(bad=(3,), gradients=(5,), at_once="open('began', 'a').write('-------\\n')").replace(
        "import glob, os, random, signal, sys, time\n", "import glob, os, random, signal, sys, time\n" + text
    )
    # Together the two are more than a MB, each alone is less.
    body = body.replace("data = [", "held = torch.rand(170_000)\ndata = [").replace(
        "* model(x)).mean()", "* model(x)).mean() + (held * 0).sum()"
    )
    began = time.monotonic()
    got = run(tmp_path, body, "--capsule-max", "1", limit=50)
    assert time.monotonic() - began < 40 and "KeyboardInterrupt" in got.err, got.text()
    first, second = got.alarms
    assert second["step"] == 5 and second["capsule"] is None and second["births"], second
    assert any(
        "step 5: KeyboardInterrupt while it waited for those before" in text for text in got.watched["not_watched"]
    ), got.text()


def test_write_failure_is_reported_once_and_training_continues(tmp_path):
    """As on a full disk: no file grows beyond 64 KB."""
    large = script(end="print('trained on', len(drawn))").replace("loss = (", "loss = 0 * table.sum() + (")
    got = run(tmp_path, large.replace("drawn = []", f"drawn = []; table = torch.rand(100_000){FULL}"))
    assert got.out == "trained on 8\n" and got.code == 0 and got.the_alarm()["capsule"] is None, got.text()
    assert got.err.count("step 3 leaves no capsule: its folder cannot be written: File too large") == 1, got.err
    assert any("a capsule of step 3: its folder cannot be written" in what for what in got.watched["not_watched"]), (
        got.text()
    )
    assert not list(tmp_path.glob("finitude-runs/*/step-*"))


def test_capsule_files_are_not_counted_as_written_twice(tmp_path):
    folder = tmp_path / "step-000003-optimizer-1.partial-0123456789abcdef-12-34-0"
    folder.mkdir()
    ours, own = (os.open(path, os.O_WRONLY | os.O_CREAT) for path in (folder / "tape.bin", tmp_path / "own.bin"))
    try:
        found = {fd for fd, _, _ in files._states()}
    finally:
        os.close(ours), os.close(own)
    assert own in found and ours not in found


def test_unfinished_capsule_of_killed_process_is_not_reported(tmp_path):
    from finitude.report import merge

    sample = json.loads((pathlib.Path(__file__).parents[1] / "data/reports/loss_forward.json").read_text())
    there = tmp_path / "step-000002"
    there.mkdir()
    (there / "capsule.json").write_text("{}")
    capsules = [
        {"capsule": str(there), "capsule_pending": True},
        {"capsule": str(tmp_path / "step-000003"), "capsule_pending": True},
        {"capsule": "x"},
    ]
    report = {**sample, "alarms": [{**sample["alarms"][0], **one} for one in capsules], "under_way": {"pid": 1}}
    (tmp_path / "pid-1").mkdir()
    (tmp_path / "pid-1/report.json").write_text(json.dumps(report))
    (left,) = merge.members(str(tmp_path))
    assert [a["capsule"] for a in left.document["alarms"]] == [str(there), None, "x"]
    assert not any("capsule_pending" in a for a in left.document["alarms"])


def test_check_prints_its_outcome_on_one_line(tmp_path):
    folder = tmp_path / run(tmp_path, script()).the_alarm()["capsule"]
    done = subprocess.run([capsule.PLAYER, "--check", folder], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "identical\n")
    assert helpers.finitude(tmp_path, "replay", "--check", str(folder)).out == "identical\n"


def test_capsule_cost_page_contains_the_measured_values():
    tool = pathlib.Path(__file__).parents[2] / "tools" / "capsule_cost.py"
    done = subprocess.run(
        [*helpers.warm_python(), tool, "--child", "MLP of 7 thousand parameters", "--rounds", "2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = json.loads(done.stdout)
    assert len(rows) == 2 and all(
        row[key] > 0
        for row in rows
        for key in ("bytes", "step", "waits", "copy", "plain", "write", "read_back", "replay")
    )


def test_process_without_training_has_no_pending_capsules():
    assert _native.capsules_wait(0) and _native.capsules_done() == []
    assert sys.modules["finitude.capsules.capsule"].CONTINUES == ("skip", "warn", "rollback")
