"""`finitude replay CAPSULE --with` a framework's training: the captured batch is given by its loader, in its loop."""

import json
import subprocess
import sys

import framework_runs
import pytest

from helpers import environment

pytestmark = framework_runs.needs("lightning", "transformers")
NORM = "x / x.norm(dim=1, keepdim=True)"


@pytest.mark.parametrize(
    ("program", "configuration", "old", "new"),
    [
        ("lightning_fit.py", "automatic", NORM, "x / (x.norm(dim=1, keepdim=True) + 1e-3)"),
        ("trainer_fit.py", "plain", "first / first.norm", "first / (1e-3 + first.norm"),
        ("trainer_fit.py", "accumulating", "first / first.norm", "first / (1e-3 + first.norm"),
    ],
    ids=["lightning", "trainer", "accumulating"],
)
def test_a_fix_is_tried_on_the_captured_step(tmp_path, program, configuration, old, new):
    text = (framework_runs.PROGRAMS / program).read_text()
    assert old in text
    run = framework_runs.run(tmp_path, program, configuration, "4", options=())
    capsule = run.alarms[0]["capsule"]
    assert capsule, run.text()

    def again(text):
        (tmp_path / program).write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "finitude", "replay", capsule, "--with", f"{program} {configuration} 4", "--json"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=framework_runs.LIMIT,
            env={**environment(None), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"},
        )
        return done.returncode, json.loads(done.stdout), done.stderr

    code, same, said = again(text)
    assert (code, same["verdict"], same["same_birth"], same["way"]) == (1, "not fixed", True, "batch"), (same, said)
    fixed = (
        text.replace(old + "(dim=1, keepdim=True)", new + "(dim=1, keepdim=True))")
        if program == "trainer_fit.py"
        else text.replace(old, new)
    )
    code, found, said = again(fixed)
    assert (code, found["verdict"], found["way"]) == (0, "fixed", "batch"), (found, said)
