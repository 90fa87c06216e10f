"""What commands print follows the terminal: its width, and whether it takes colours."""

import os
import pty
import shutil
import struct
import subprocess
import termios

import pytest
from test_newest_run import DATA, runs  # noqa: F401  a fixture

import helpers

ESCAPE = "\x1b["


def on_terminal(folder, *words, columns=100, env=None, errors=subprocess.DEVNULL):
    """Standard output, and with errors=subprocess.STDOUT standard error, of `finitude *words` on a terminal so wide."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns)) if hasattr(termios, "tcsetwinsize") else _resize(theirs, columns)
    started = subprocess.Popen(
        [*helpers.warm_python(), "-m", "finitude", *words],
        cwd=folder,
        env={**helpers.environment(env), "TERM": "xterm", "LANG": "C.UTF-8", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=errors,
    )
    os.close(theirs)
    text = b""
    try:
        while data := os.read(ours, 65536):
            text += data
    except OSError:  # its other end is closed
        pass
    os.close(ours)
    started.wait()
    return text.decode().replace("\r\n", "\n")


def _resize(terminal, columns):
    import fcntl

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


@pytest.fixture
def traced(tmp_path):
    for run in ("20260101-a", "20260102-b"):
        (tmp_path / "finitude-runs" / run).mkdir(parents=True)
        shutil.copyfile(DATA / "reports" / "trace.json", tmp_path / "finitude-runs" / run / "report.json")
    return tmp_path


@pytest.mark.parametrize("columns", [60, 140])
@pytest.mark.parametrize("word", ["report", "diff", "list", "doctor"])
def test_no_line_is_wider_than_the_terminal(runs, word, columns):  # noqa: F811
    path = ["finitude-runs/20260102-bad"] if word in ("report", "doctor") else []
    shown = on_terminal(runs.parent, word, *path, columns=columns, env={"NO_COLOR": "1"})
    # A path, a diff or a command is not broken.
    lines = [
        line for line in shown.splitlines() if " " in line.strip() and not line.strip().startswith("finitude replay ")
    ]
    longest = max(lines, key=len)
    assert lines and len(longest) <= columns, longest


def test_a_wide_terminal_is_used(runs):  # noqa: F811
    path = "finitude-runs/20260102-bad"
    wide, narrow = (on_terminal(runs.parent, "report", path, columns=columns) for columns in (140, 60))
    assert len(wide.splitlines()) < len(narrow.splitlines())


@pytest.mark.parametrize("words", [["report", "finitude-runs/20260101-a"], ["diff"]], ids=lambda words: words[0])
def test_colours_are_for_terminals_that_want_them(traced, words):
    if words == ["report", "finitude-runs/20260101-a"]:  # of a run with an alarm
        shutil.copyfile(DATA / "reports" / "loss_forward.json", traced / words[1] / "report.json")
    else:  # of two that part
        other = traced / "finitude-runs/20260102-b/report.json"
        other.write_text(other.read_text().replace('"absmax": 3', '"absmax": 5', 1))
    coloured = ESCAPE in on_terminal(traced, *words)
    assert coloured or words == ["diff"]
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert ESCAPE not in on_terminal(traced, *words, env=env), env
    assert ESCAPE not in on_terminal(traced, *words, "--no-colour")
    assert ESCAPE not in helpers.finitude(traced, *words).out


def test_of_two_capsules_as_well(runs):  # noqa: F811
    for env, option in (({"NO_COLOR": "1"}, []), ({"TERM": "dumb"}, []), ({}, ["--no-colour"])):
        shown = on_terminal(runs.parent, "diff", *option, columns=60, env=env)
        assert shown and ESCAPE not in shown, shown
        assert max(len(line) for line in shown.splitlines() if " " in line.strip()) <= 60, shown


def on_screen(text, columns):
    """The lines of a terminal that wraps as xterm does: a letter in the last column leaves the cursor on it."""
    lines, row, column = [[]], 0, 0
    for letter in text:
        if letter == "\r":
            column = 0
        elif letter == "\n":
            row += 1
        else:
            if column == columns:
                row, column = row + 1, 0
            lines += [[] for _ in range(row + 1 - len(lines))]
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = letter
            column += 1
            continue
        lines += [[] for _ in range(row + 1 - len(lines))]
    return ["".join(line).rstrip() for line in lines]


BAR = """
import sys
for i, x in enumerate(batches):
    sys.stderr.write(f"\\r{i} |" + "#" * WIDE)
    opt.zero_grad()
    (loss_of(x) * (NAN if i == 3 else 1)).backward()
    opt.step()
"""


@pytest.mark.parametrize("wide", [0, 69 - 4])
def test_a_report_begins_on_a_line_of_its_own(tmp_path, wide):
    """A progress bar that waits in its line for the next step stays whole, however long it is."""
    helpers.write_script(tmp_path, helpers.TRAINING + BAR.replace("WIDE", str(wide)))
    env = {"NO_COLOR": "1"}
    shown = on_terminal(tmp_path, "run", "train.py", columns=70, env=env, errors=subprocess.STDOUT)
    lines = on_screen(shown.replace("\n", "\r\n"), 70)
    first = next(i for i, line in enumerate(lines) if "step 3 stopped" in line)
    assert lines[first].startswith("finitude: step 3 stopped"), lines[: first + 1]
    assert lines[first - 1] == "3 |" + "#" * wide and not lines[0] == "", lines[: first + 1]
    assert any(line.startswith("finitude: 4 steps watched") for line in lines), shown
