"""An alarm in one line: what ended the program, where the value was born, why, and where the report is."""

from __future__ import annotations

import os

from ..base.say import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm, Birth
    from .document import Report

MOST_LISTED = 4  # rows or samples in one line
LONGEST_CLAUSE = 160  # characters
TO_COME = "being explained: all ranks are run again together once they have ended"  # a cause that is not known yet


def born(birth: Birth) -> str:
    """The operation, its line, and which rows or samples it was."""
    words = birth["op"] or birth.get("name") or birth["phase"]
    if birth["file"]:
        words += f" at {os.path.basename(birth['file'])}:{birth['line']}"
    for what, many in (("row", birth.get("rows")), ("sample", birth.get("samples"))):
        if many:
            listed = ", ".join(map(str, many[:MOST_LISTED])) + (
                f" and {len(many) - MOST_LISTED} more" if len(many) > MOST_LISTED else ""
            )
            words += f", {what}{'s' if len(many) > 1 else ''} {listed}"
    return words


def _others(births):
    """A further birth of the forward pass, which mending the first does not mend; of the first of them the place."""
    first = births[0]
    place = ("file", "line", "expression")
    others = [
        b for b in births[1:] if b["phase"] == "forward" and [b.get(k) for k in place] != [first.get(k) for k in place]
    ]
    if not others or first["phase"] != "forward":
        return ""
    expression = others[0].get("expression")
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f", and in {born(others[0])}" + (f" ({expression})" if expression else "") + more


def _clause(text):
    """The first clause of a text: up to a semicolon or full stop that no parenthesis encloses."""
    depth, end = 0, len(text)
    for at, (one, following) in enumerate(zip(text, text[1:])):
        depth += (one in "([{") - (one in ")]}" and depth > 0)
        if one in ";." and following == " " and not depth:
            end = at
            break
    text = text[:end].rstrip(".")
    if len(text) <= LONGEST_CLAUSE:
        return text
    head = text[: LONGEST_CLAUSE - 3]  # not within a name, a place or a number
    ends = (head.rfind(", "), head.rfind(" "), len(head))
    return head[: next(end for end in ends if end > LONGEST_CLAUSE // 2)] + " ..."


def _same_finding(report, alarm):
    """The alarm of which this one is a repeat, or itself."""
    alike = (
        a
        for a in report.alarms
        if a["step"] == alarm.get("repeat_of") and a["optimizer"] == alarm["optimizer"] and "repeat_of" not in a
    )
    return next(alike, alarm)


def message(report: Report, alarm: Alarm, more: str = "") -> str:
    """What the exception says that ends the program, which is the last line of most logs: one line, whatever rules,
    exceptions and paths of the program bring into it."""
    first = _same_finding(report, alarm)
    words = f"step {alarm['step']}: {alarm['text']}{more}"
    of = f"not run again; of step {first['step']}: " if first["step"] != alarm["step"] else ""
    if first["births"]:
        words += f"; {of}born in {born(first['births'][0])}{_others(first['births'])}"
    cause = first["cause"] or {}
    if cause.get("class", "unknown") != "unknown":
        words += f"; cause: {_clause(cause['text'])} ({cause['class']})"
    elif cause.get("text") == TO_COME:
        words += f"; cause: {TO_COME}"
    path = report.path()
    words += f". Report: {path}" if path else ""
    # A line break of any kind becomes a blank, and no other control character reaches a terminal.
    return printable(" ".join(words.splitlines()))
