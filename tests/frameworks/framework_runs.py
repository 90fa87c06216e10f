"""Runs the programs of tests/frameworks/programs, each in a process of its own, watched and not."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from helpers import Result, environment

PROGRAMS = pathlib.Path(__file__).parent / "programs"
LIMIT = 300  # seconds; importing a framework takes some by itself


def needs(*packages):
    """The marks of a module of tests that needs these packages."""
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    return [
        pytest.mark.frameworks,
        pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (make test-frameworks)"),
    ]


def run(folder, program, *arguments, options=None, env=None, text=None):
    """`finitude run *options program *arguments` in `folder`; with options None, plain Python."""
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    (folder / program).write_text(text or (PROGRAMS / program).read_text())
    (folder / "bits.py").write_text((PROGRAMS / "bits.py").read_text())
    report = folder / "report.json"
    words = [program, *arguments]
    if options is not None:
        words = ["-m", "finitude", "run", "--report", "report.json", *options, *words]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
        env={**environment(env), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"},
    )
    found = json.loads(report.read_text()) if report.is_file() else None
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode(), found, folder)


def without_times(out):
    """Standard output without what is measured by a clock: run times in logs, and the lines of rich's progress bar,
    whose rates change the width of all else in them."""
    lines = [line for line in out.splitlines() if "\u2501" not in line and not line.startswith("   ")]
    return re.sub(
        r"(train_runtime|train_\w+_per_second|eval_runtime|eval_\w+_per_second)': '[\d.e+-]+'", r"\1", "\n".join(lines)
    )


def line_of(program, source):
    """The number of the line that holds `source`, which stands once in the program."""
    lines = [i for i, text in enumerate((PROGRAMS / program).read_text().splitlines(True), 1) if source in text]
    assert len(lines) == 1, (source, lines)
    return lines[0]


def assert_healthy(watched, plain):
    """Nothing differs but our closing line; `weights` lines carry a digest of every bit of the parameters."""
    watched.assert_silent()
    assert plain.code == 0, plain.text()
    assert watched.code == plain.code and without_times(watched.out) == without_times(plain.out), watched.text()
    assert "weights" in plain.out


def assert_explained(got, program, step, source, cause, way="closure"):
    """One alarm: the right step, the user's own line, the cause, the way of the second run, weights untouched."""
    alarm = got.the_alarm()
    assert alarm["step"] == step and alarm["weights"] == "clean", got.text()
    assert alarm["births"], (alarm["rerun_text"], got.text())
    birth = alarm["births"][0]
    assert (os.path.basename(birth["file"]), birth["line"]) == (program, line_of(program, source)), (
        birth,
        alarm["rerun_text"],
    )
    assert alarm["cause"]["class"] == cause, alarm["cause"]
    assert (alarm["rerun_by"], alarm["rerun_verified"], alarm["rerun"]) == (way, True, "persistent"), alarm[
        "rerun_text"
    ]
    return alarm


def assert_weights_as_before(got, name):
    """The weights at the end are, bit for bit, those after the last step that was applied."""
    assert (
        re.findall(r"weights (\w+)$", got.out, re.M) == (got.folder / name / "digests.txt").read_text().split()[-1:]
    ), got.text()
