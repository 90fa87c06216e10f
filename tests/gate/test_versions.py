"""A torch that is not supported, does not load, or is not the one we were built for: one line, and the program runs."""

import json
import pathlib
import subprocess
import sys

import jsonschema
import pytest

from helpers import finitude, plain, write_script

SCHEMA = json.loads((pathlib.Path(__file__).parents[2] / "docs/report.schema.json").read_text())
PROGRAM = "import sys\nprint('starts', sys.argv[1:])\n{}\nprint('err', file=sys.stderr)\nsys.exit(3)\n"
READS_VERSION = PROGRAM.format("import torch\nprint(torch.__version__)")
NEEDS_NO_TORCH = PROGRAM.format("")


def other_torch(folder, text):
    """A package of that name where `folder` is the working directory: it comes before the one that is installed."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(text)


def reported_in_one_line(folder, got, *words):
    """It ran as under plain Python but for one line of ours; the report gives the same reason."""
    wanted = plain(folder, "train.py", "a", "b c", cold=True)
    first, rest = got.err.split("\n", 1)
    assert (got.code, got.out, rest) == (wanted.code, wanted.out, wanted.err) and got.code == 3, got.text()
    assert first.startswith("finitude: ") and first.endswith("; the program runs unwatched."), first
    assert all(word in first for word in words), first
    jsonschema.validate(got.report, SCHEMA)
    assert got.report["outcome"] == "unwatched" and got.report["reason"] in first
    assert not got.alarms and not any(got.watched.values())


def watched(folder):
    return finitude(folder, "run", "--report", "report.json", "train.py", "a", "b c", cold=True)


@pytest.mark.parametrize("version", ["1.13.1", "2.4.1+cpu", "2.6.0", "2.16.0a0+git1f2e3d4", "3.0.0", "built at home"])
def test_a_torch_out_of_range(tmp_path, version):
    write_script(tmp_path, READS_VERSION)
    other_torch(tmp_path, f"__version__ = {version!r}\n")
    reported_in_one_line(tmp_path, watched(tmp_path), f"torch {version} ", "2.7 to 2.15")


@pytest.mark.parametrize(
    "error", ["ImportError('no\\n\\n  module')", "OSError('libcudart.so: cannot open')", "RuntimeError()"]
)
def test_a_torch_that_cannot_be_imported(tmp_path, error):
    write_script(tmp_path, NEEDS_NO_TORCH)
    other_torch(tmp_path, f"raise {error}\n")
    reported_in_one_line(tmp_path, watched(tmp_path), "torch cannot be imported")


def test_torch_without_required_libraries_gives_one_line(tmp_path):
    write_script(tmp_path, READS_VERSION)
    other_torch(tmp_path, "__version__ = '2.13.0'\n")
    reported_in_one_line(tmp_path, watched(tmp_path), "torch 2.13.0")


def test_torch_other_than_built_for_runs_unwatched(tmp_path):
    """Another minor version, in range; said by a torch whose version is changed behind it."""
    write_script(tmp_path, NEEDS_NO_TORCH)
    start = """
import sys, torch
from finitude.base import compat, engines
from finitude.cli import main
held = engines.folders()
assert compat.torch_version(torch.__version__) in held
torch.__version__ = next(f"2.{minor}.1" for minor in range(13, 6, -1) if (2, minor) not in held)
main.main(["run", "--report", "report.json", "train.py", "a", "b c"])
"""
    done = subprocess.run([sys.executable, "-c", start], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and done.stderr.count("finitude:") == 1, done.stderr
    assert "was built for torch 2." in done.stderr and "; the program runs unwatched.\n" in done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["outcome"] == "unwatched"


def test_a_report_that_cannot_be_written_stops_nothing(tmp_path):
    write_script(tmp_path, READS_VERSION)
    other_torch(tmp_path, "__version__ = '2.6.0'\n")
    (tmp_path / "taken").write_text("")
    got = finitude(tmp_path, "run", "--report", "taken/report.json", "train.py", cold=True)
    assert got.code == 3 and "2.6.0\n" in got.out and got.err.count("finitude: ") == 2, got.text()
