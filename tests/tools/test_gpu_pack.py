"""The script that a GPU pack is run by, where no GPU is; and the steps that it shares with `make gpu`."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"


@pytest.fixture
def pack(tmp_path):
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOLS / "gpu_pack_run.sh", tmp_path / "run")
    for name in ("steps.sh", "gpu_steps.sh"):
        shutil.copy(TOOLS / name, tmp_path / "tools" / name)
    return tmp_path


def bash(folder, text):
    words = ["bash", "-c", f". tools/steps.sh; . tools/gpu_steps.sh; {text}"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=30)


def test_without_a_gpu_it_says_so(pack):
    if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU")
    done = subprocess.run([pack / "run"], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "gpu-pack: there is no NVIDIA GPU on this machine\n"


def test_a_step_that_hangs_is_ended(pack):
    begun = time.monotonic()
    done = bash(pack, "step_total=2; step first limited 1 sleep 25; step second true")
    assert time.monotonic() - begun < 20
    assert "[1 of 2] first: failed (exit 124)" in done.stdout and "[2 of 2] second: done" in done.stdout


def test_every_step_runs_and_failure_counts(pack):
    results = pack / "results"
    results.mkdir()
    text = f"python=false programs=/nowhere tests=. bench=. package=. results={results} step_total=$gpu_steps; run_gpu_steps page"
    done = bash(pack, text)
    assert done.returncode == 1
    assert done.stdout.count(": failed") == 6 and "[6 of 6]" in done.stdout


def test_limits_come_to_less_than_eight_minutes():
    steps = (TOOLS / "gpu_steps.sh").read_text()
    limits = [int(word) for line in steps.splitlines() for word in _limits(line)]
    assert len(limits) == 6 and sum(limits) < 450


def _limits(line):
    words = line.replace("(", " ").split()
    if not ("step " in line or "limited 40" in line or "bench.py" in line):
        return []
    return [b for a, b in zip(words, words[1:]) if a in ("limited", "run_tests", "run_python") and b.isdigit()]
