"""A second process: from a checkpoint where the user says how, ended by Ctrl-C alone, and said before how long it
takes."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import helpers

# The batches are popped from a list, which a rewind cannot give back, so a second process has to explain the step.
SAVES = """
import argparse, os, time
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--resume")
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()
torch.manual_seed(0)
queue = [torch.randn(4, 3) for _ in range(9)]
queue[7][1] = 0
model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
if args.resume:
    state = torch.load(args.resume)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    torch.set_rng_state(state["rng"])
    step = state["step"]
    del queue[:step]
os.makedirs("ckpt", exist_ok=True)
print("begins at", step, file=open(f"ckpt/begin-{os.getpid()}.txt", "w"), flush=True)
while queue:
    x = queue.pop(0)
    if step and step % 3 == 0 and not args.resume:
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "rng": torch.get_rng_state(), "step": step},
                   f"ckpt/{step}.pt")
    time.sleep(args.pause)
    loss = (model(x / x.norm(dim=1, keepdim=True)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
"""


def test_restart_begins_at_newest_checkpoint_if_configured(tmp_path):
    got = helpers.run(tmp_path, SAVES, "--restart-args", "--resume {newest:ckpt/*.pt}")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"]) == (7, "restart"), got.text()
    assert "ckpt/6.pt" in alarm["rerun_text"]
    assert (alarm["rerun"], alarm["rerun_verified"]) == ("persistent", True), alarm["rerun_text"]
    assert alarm["births"][0]["op"] == "aten::div"


def test_restart_without_a_checkpoint_begins_at_start(tmp_path):
    got = helpers.run(tmp_path, SAVES, "--restart-args", "--resume {newest:nowhere/*.pt}")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (7, "restart", True)
    assert "no file matches nowhere/*.pt, so it was run from its start" in alarm["rerun_text"]


@pytest.mark.slow
def test_ctrl_c_ends_restart_only_and_alarm_remains(tmp_path):
    """It is said before how long the second run will take: as long as the first, which was more than three seconds."""
    helpers.write_script(tmp_path, SAVES)
    process = subprocess.Popen(
        [sys.executable, "-m", "finitude", "run", "--report", "report.json", "train.py", "--pause", "0.6"],
        cwd=tmp_path,
        env=helpers.environment(None),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=helpers.hears_signals,
    )
    printed = ""
    while "Ctrl-C skips this" not in printed:
        line = process.stderr.readline()
        assert line, printed
        printed += line
    assert "which takes about " in printed
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "NonFiniteError" in err, err
    import json

    alarm = json.loads((tmp_path / "report.json").read_text())["alarms"][0]
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"]) == (7, "not-run", "none")
    assert "ended by Ctrl-C" in alarm["rerun_text"]


def test_processes_started_by_the_restart_end_with_it(tmp_path):
    """It ends without a word, as its program would not; what it has started would wait for it for good."""
    got = helpers.run(
        tmp_path,
        """
        import subprocess, torch
        helper = subprocess.Popen(["sleep", "47.11"])
        w = torch.nn.Parameter(torch.zeros(2))
        opt = torch.optim.SGD([w], lr=0.1)
        (w / w).sum().backward()
        opt.step()
        helper.kill()
        """,
        "--on-alarm",
        "skip",
    )
    assert (got.code, got.the_alarm()["rerun_by"]) == (0, "restart"), got.text()
    left = [p for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if _reads(p) == b"sleep\x0047.11\x00"]
    assert not left, left


def _reads(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
