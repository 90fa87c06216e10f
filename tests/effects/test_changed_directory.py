"""A program that goes to another directory: reports and capsules lie where the user started it."""

import pathlib

import pytest

import helpers

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
