"""The exception that ends a program is one line, whatever the words in it are made of."""

import torch  # noqa: F401  its libraries

from finitude.report.console import Console, message

CAUSE = {"class": "user:mine", "text": "first line\nsecond\r\nthird\x1b[2J\x85fourth"}
BIRTH = {"op": "aten::log", "phase": "forward", "file": "/srv/a\nb/train.py", "line": 11, "rows": [4, 9]}


class Report:
    def __init__(self, alarm):
        self.alarms = [alarm]

    def path(self):
        return "runs/od\nd/report.json"


def test_line_breaks_and_control_characters_are_removed():
    text = "loss is NaN\nTraceback (most recent call last):\n"
    alarm = {"step": 3, "optimizer": "SGD", "text": text, "births": [BIRTH], "cause": CAUSE}
    line = message(Report(alarm), alarm)
    assert line.isprintable() and line.startswith("step 3: loss is NaN Traceback"), line
    assert "born in aten::log at train.py:11, rows 4, 9; cause: first line second third?[2J fourth (user:mine)" in line
    assert line.endswith(". Report: runs/od d/report.json")


def test_a_clause_ends_outside_parentheses():
    text = "9 bytes changed (bytes 0 to 8, no gap; a multiple of 2.5) between two calls; the second is at x.py:3"
    alarm = {"step": 3, "optimizer": "SGD", "text": "loss is Inf", "births": [BIRTH], "cause": {**CAUSE, "text": text}}
    line = message(Report(alarm), alarm)
    assert "cause: 9 bytes changed (bytes 0 to 8, no gap; a multiple of 2.5) between two calls (user:mine)" in line
    alarm["cause"]["text"] = "it is 0.5. The rest (of it; all) follows"
    assert "cause: it is 0.5 (user:mine)" in message(Report(alarm), alarm)


def test_a_long_clause_ends_between_words():
    for text, end in (
        (
            "memory changed " * 8 + "between aten::add at one.py:3, and aten::native_layer_norm at finite.py:12",
            "one.py:3 ...",
        ),
        ("memory changed " * 9 + "between aten::add at one.py:3 and aten::native_layer_norm", "aten::add at ..."),
        ("x" * 300, "x" * 157 + " ..."),
    ):
        alarm = {"step": 3, "optimizer": "SGD", "text": "", "births": [BIRTH], "cause": {**CAUSE, "text": text}}
        assert f"{end} (user:mine)" in (line := message(Report(alarm), alarm)), line


def test_before_all_ranks_run_again_one_rank_names_no_cause():
    """What it has found alone may be refuted: a state that was bad at the start is not yet a bad checkpoint."""
    alarm = {"step": 0, "optimizer": "SGD", "text": "gain held 504 NaN", "births": [BIRTH], "level": "gate"}
    alarm["cause"] = {"class": "corrupted-state", "confidence": "likely", "text": "a bad value", "experiments": []}
    alarm["fix"] = {"text": "an earlier checkpoint", "verified": False}
    console = Console(Report(alarm))
    assert console.as_known(alarm) is alarm
    assert "cause: a bad value (corrupted-state)" in message(Report(alarm), console.as_known(alarm))
    console.explain_later(alarm)
    known = console.as_known(alarm)
    assert known["fix"] is None and known["cause"]["class"] == "unknown" and alarm["fix"]
    line = message(Report(alarm), known)
    assert "born in aten::log" in line and "; cause: being explained: all ranks" in line and "corrupted" not in line
