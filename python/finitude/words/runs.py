"""What `list` and `report` say of runs, also of those that still go on or were killed."""

from __future__ import annotations

import json
import os
import sys

from ..base import plain_json
from ..findings import left, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

EXIT_USAGE, EXIT_INPUT = 2, 3
MAX_BYTES = 1 << 30
MOST_LISTED = 8  # capsules in one report


def _printable(text):
    return "".join(c if c.isprintable() else "?" for c in text)


def _counted(number, word):
    return f"{number} {word}{'s' * (number != 1)}"


def _report_of(directory):
    """Its report.json, None where it has none that can be read."""
    try:
        document = plain_json.read(os.path.join(directory, "report.json"), MAX_BYTES)
        types = type(document["watched"]["steps"]), type(document["outcome"]), type(document["alarms"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return document if types == (int, str, list) else None


def _line(name, directory):
    """One run of `list`; "": it is none."""
    document = _report_of(directory)
    if document is None and not left.is_run(directory):
        return ""
    found = left.capsules(directory)
    if document is not None:
        outcome, reason = left.told(directory, document)["outcome"], str(document.get("reason", ""))
        steps, alarms = document["watched"]["steps"], document["alarms"]
        if outcome in ("running", "killed"):
            steps = max(steps, left.steps(directory))
        return _told(name, outcome, steps, alarms, found, reason)
    members = [m.document for m in merge.members(directory) if m.document]
    alarms = [alarm for one in members for alarm in one["alarms"]]
    reason = next((one["reason"] for one in members if one["alarms"]), "")
    if os.path.exists(os.path.join(directory, "report.json")):
        return _told(name, "unknown", left.steps(directory), alarms, found, "report.json cannot be read")
    return _told(name, left.state(directory), left.steps(directory), alarms, found, reason)


def _told(name, outcome, steps, alarms, found, reason):
    counts = [_counted(len(alarms), "alarm")] * bool(alarms) + [_counted(len(found), "capsule")] * bool(found)
    return f"{name}  {outcome:9} {steps:>7} steps  {', '.join(counts)}{'  ' * bool(counts)}{reason}"


def listed(rest: Sequence[str]) -> int:
    """The word `list`."""
    if unknown := [word for word in rest if word.startswith("-")] or rest[1:]:
        what = "unknown option" if unknown[0].startswith("-") else "one directory at a time, not also"
        sys.stderr.write(f"finitude list: {what} {_printable(unknown[0])}; usage: finitude list [DIR]\n")
        return EXIT_USAGE
    directory = rest[0] if rest else "finitude-runs"
    try:
        names = sorted(os.listdir(directory), reverse=True)
    except OSError as e:
        sys.stderr.write(f"finitude: cannot read {directory}: {e.strerror}\n")
        return EXIT_INPUT
    for name in names:
        path = os.path.join(directory, name)
        if os.path.isdir(path) and (line := _line(name, path)):
            sys.stdout.write(_printable(line)[:200].rstrip() + "\n")
    return 0


def with_state(path: str, text: str) -> str:
    """The text of a report; of a run that has not ended by itself its outcome says so."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    directory = path if os.path.isdir(path) else os.path.dirname(path)
    now = left.told(directory, document) if isinstance(document, dict) else document
    return text if now is document else json.dumps(now, indent=1) + "\n"


def told_without_report(path: str, report: Callable[..., Any]) -> int | None:
    """What is known of a run that left no report.json: the exit code; None where it has one or is no run. report: shows
    one process of it."""
    if not os.path.isdir(path) or any(
        os.path.exists(os.path.join(path, name)) for name in ("report.json", "capsule.json")
    ):
        return None
    if os.path.isfile(os.path.join(path, "steps.ring")):
        return _of_ring(path)
    if found := merge.members(path):
        codes = [report([member.directory]) for member in found if left.is_run(member.directory)]
        if not codes:
            text = f"none of its {len(found)} processes left a report that can be read"
            sys.stderr.write(f"finitude: {path}: {text}\n")
        return max(codes, default=EXIT_INPUT)
    if os.path.isfile(os.path.join(path, left.STARTED)):
        print(_printable(f"{path}: {_state_in_words(path)}; it took no step"))
        return 0
    return None


def _state_in_words(directory):
    process = f"process {left.who_runs(directory).get('pid', '')}".strip()
    if left.state(directory) == "running":
        return f"{process} is running: there is no report yet"
    return f"{process} ended before it could write a report"


def _of_ring(directory):
    """What the steps say of a run without a report."""
    import torch  # noqa: F401  the engine's libraries

    from .. import _native

    path = os.path.join(directory, "steps.ring")
    try:
        ring = _native.read_ring(path)
    except ValueError as e:
        sys.stderr.write(f"finitude: {path} cannot be read: {e}\n")
        return EXIT_INPUT
    steps = ring["steps"]
    words = f"process {ring['pid']} ended before it could write a report"
    print(f"{directory}: {_state_in_words(directory) if left.who_runs(directory) else words}")
    print(f"{ring['overwritten'] + len(steps)} steps were recorded" + (", the last of them:" if steps else ""))
    for s in steps[-5:]:
        what = "" if s["applied"] else "   not applied"
        print(
            f"  step {s['step']}   loss {s['loss']:.6g}   largest gradient {s['grad_absmax']:.4g}"
            f"   lr {s['lr']:.4g}   {s['seconds']:.1f} s after the start{what}"
        )
    for folder in left.capsules(directory)[:MOST_LISTED]:
        print(f"  capsule {_printable(folder)}")
    return 0
