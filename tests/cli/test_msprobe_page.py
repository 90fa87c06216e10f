"""Each command of docs/msprobe.md runs on the programs in examples/msprobe, and prints what the page shows."""

import pathlib
import re
import shlex
import shutil

import pytest
from test_diff_of_dumps import probe_of

import helpers

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def blocks():
    """[(command, lines that the page shows of its output)], in the order of the page."""
    found = []
    for line in (ROOT / "docs/msprobe.md").read_text().splitlines():
        if line.startswith("    finitude ") and not line.startswith("    finitude:"):
            found.append((line.strip(), []))
        elif line.startswith("    ") and found:
            found[-1][1].append(line.strip())
    return found


def words(line):
    """Without what differs between processors: numbers, how a terminal breaks lines, and what the page leaves away."""
    return " ".join(re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "N", line.replace("...", " ")).split())


def newest(folder):
    return sorted(p for p in folder.iterdir() if p.is_dir())[-1]


def test_commands_of_the_page_print_what_it_shows(tmp_path):
    for program in (ROOT / "examples/msprobe").glob("*.py"):
        shutil.copy(program, tmp_path)
    shown = blocks()
    assert len(shown) >= 12, shown
    for command, lines in shown:
        arguments = []
        for word in shlex.split(command)[1:]:
            folder = tmp_path / word.partition("RUN")[0]
            arguments.append(word.replace("RUN", newest(folder).name) if "RUN" in word else word)
        if "msprobe/step0" in arguments:
            dump = newest(tmp_path / "B") / "dumps/step-000000.json"
            probe_of(dump, tmp_path / "msprobe")
        got = helpers.finitude(tmp_path, *arguments)
        assert got.code in (0, 1), (command, got.text())
        printed = words(got.out + " " + got.err)
        for line in lines:
            for part in filter(None, (words(part) for part in line.split("..."))):
                assert part in printed, (command, part, got.text())
