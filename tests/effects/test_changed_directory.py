"""A program that goes to another directory: reports and capsules lie where the user started it."""

import pathlib

import pytest

import helpers
from finitude.base import config

LEAVES = """
import atexit, os, shutil, tempfile
elsewhere = tempfile.mkdtemp()
atexit.register(shutil.rmtree, elsewhere)
os.chdir(elsewhere)
for i, x in enumerate(batches):
    opt.zero_grad()
    loss_of(x * (INF if i == 4 else 1)).backward()
    opt.step()
"""


@pytest.mark.fast
def test_reports_and_capsules_are_written_to_start_directory(tmp_path):
    got = helpers.training(tmp_path, LEAVES, "--on-alarm", "skip", "--runs", "kept")
    alarm = got.the_alarm()
    runs = list((tmp_path / "kept").glob("*"))
    assert len(runs) == 1 and (runs[0] / "report.html").is_file(), got.text()
    assert (
        pathlib.Path(alarm["capsule"]).parent == runs[0] and (pathlib.Path(alarm["capsule"]) / "capsule.json").is_file()
    )
    assert str(runs[0] / "report.json") in got.err, "a path that still leads there"


def test_paths_of_the_environment_too(tmp_path):
    got = helpers.training(tmp_path, LEAVES, "--on-alarm", "skip", env={"FINITUDE_RUNS": "there"})
    assert got.the_alarm() and list((tmp_path / "there").glob("*/report.json")), got.text()


REMOVED = """
import os, tempfile
gone = tempfile.mkdtemp()
os.chdir(gone)
os.rmdir(gone)
for i, x in enumerate(batches):
    opt.zero_grad()
    loss_of(x * (INF if i == {bad} else 1)).backward()
    opt.step()
print("ended", finite())
"""


@pytest.mark.parametrize("bad", [-1, 4])
def test_working_directory_that_is_removed_costs_nothing(tmp_path, bad):
    got = helpers.training(tmp_path, REMOVED.format(bad=bad), "--on-alarm", "skip")
    assert (got.code, got.out) == (0, "ended True\n") and not got.report["failures"], got.text()
    assert len(got.alarms) == (bad > 0) and "6 steps watched" in got.err and "report.json" in got.err, got.text()


def test_start_in_removed_directory_is_usage_error(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(config.UsageError, match="the working directory cannot be found"):
        config.load({"runs": "kept"})
