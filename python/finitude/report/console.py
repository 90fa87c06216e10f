"""What a person hears of an alarm while the program runs: the whole report, one line, or nothing. And what the
exception says that ends the program: what the step is, where the value was born, why, and where the report is."""

from __future__ import annotations

import os

from .. import _native
from ..base import secrets
from ..base.say import printable, say
from ..program import ranks
from .growth import DIVERGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm, Birth, Cause, Document
    from .document import Report

MOST_LINES = 10  # about alarms of one kind
FURTHER = "; further ones are only counted"
SOON = 10  # steps: what follows within them is the same divergence
MOST_LISTED = 4  # rows or samples in one line
LONGEST_CLAUSE = 160  # characters
TO_COME = "being explained: all ranks are run again together once they have ended"  # a cause that is not known yet


class Console:
    def __init__(self, report: Report):
        self.report = report
        self.show: Any = None  # takes a report (document, text) instead of stderr, and says whether it did
        self.later: Alarm | None = None  # an alarm that a second run of all ranks is to explain once they have ended
        self._lines = {}  # what kind of alarm -> how often it was reported in one line
        self._births = {}  # place of a birth -> the step whose report had it
        self._divergence: Alarm | None = None  # the last one that was reported in full

    def explain_later(self, alarm: Alarm) -> None:
        self.later = alarm

    def show_with(self, show: Callable[[Document, str], bool]) -> None:
        self.show = show

    def print_alarm(self, alarm: Alarm, brief: bool = False) -> None:
        """What of the alarm a person is to hear, once it is on disk."""
        text, document = self._words(alarm, brief)
        self.report.save(is_shown=bool(text))
        if text and not (document and self.show is not None and self.show(document, text)):
            _say(text)

    def as_known(self, alarm: Alarm) -> Alarm:
        """The alarm; before a second run of all ranks without the cause and the fix that this rank alone has for it,
        and without the advice to use another level."""
        if alarm is not self.later:
            return alarm
        cause: Cause = {"class": "unknown", "confidence": "possible", "text": TO_COME, "experiments": []}
        known: Any = {**alarm, "cause": cause, "fix": None}
        known.pop("level", None)
        return known

    def _words(self, alarm, brief):
        """(text, its document): the report of an alarm; of one like others before, that no second run explained, one
        line; of many, nothing. brief: the alarm before it has said the same."""
        if brief:
            return _line(alarm, f" ({alarm['rerun_text']})"), None
        if "repeat_of" in alarm and alarm["action"] != "stopped":
            key = alarm["optimizer"], alarm["repeat_of"]
            self._lines[key] = self._lines.get(key, 0) + 1
            if self._lines[key] > MOST_LINES:
                return "", None
            return _line(alarm, f"; {alarm['cause']['text']}" + FURTHER * (self._lines[key] == MOST_LINES)), None
        if "repeat_of" in alarm:
            return _line(alarm, f"; {alarm['cause']['text']}"), None
        what = (alarm["sink"]["kind"], alarm["harmless"], alarm["optimizer"])
        if alarm["rerun_by"] == "none" and what in self._lines and "stopped" not in alarm["action"]:
            self._lines[what] += 1
            last = FURTHER if self._lines[what] == MOST_LINES else ""
            return _line(alarm, last) if self._lines[what] <= MOST_LINES else "", None
        self._lines.setdefault(what, 0)
        if alarm["births"] and "stopped" not in alarm["action"]:
            birth = alarm["births"][0]
            place = (
                alarm["optimizer"],
                *(birth[key] for key in ("phase", "op", "file", "line", "module", "node")),
                alarm["cause"]["class"],
            )
            # A sample of the data set is one story, whether it is led back to where it was made or to its batch.
            sample = (alarm["optimizer"], birth.get("name"), *(birth.get("samples") or ()))
            places = [place, sample] if birth["phase"] == "data" and birth.get("samples") else [place]
            first = min(self._births.get(one, alarm["step"]) for one in places)
            self._births.update((one, first) for one in places if one not in self._births)
            if first != alarm["step"]:
                return _line(alarm, f"; born as in step {first}: {born(birth)}"), None
        if (first := self._same_divergence(alarm)) is not None:
            where = f"; the divergence of step {first['step']} of {first['optimizer']}: {born(alarm['births'][0])}"
            return _line(alarm, where), None
        if (
            ranks.several()
            and alarm["sink"]["kind"] != "loss"
            and all(b["phase"] == "communication" for b in alarm["births"])
        ):
            return _line(alarm), None  # averaged gradients are bad everywhere; the rank whose own loss is bad says more
        document = self.report.document()
        document["alarms"] = _native.plain([self.as_known(alarm)], secrets.shown)
        document["advisories"] = []
        document.pop("trace", None)
        return self.report.text(document), document

    def _same_divergence(self, alarm):
        """The alarm that has reported the divergence that this one is of as well, at a loss of another optimizer or a
        step later; None where this one is to report it."""
        cause, first = alarm["cause"]["class"], self._divergence
        if cause not in DIVERGES or not alarm["births"]:
            return None
        if first is not None and first["cause"]["class"] == cause and 0 <= alarm["step"] - first["step"] <= SOON:
            return first
        self._divergence = alarm
        return None


def _line(alarm, more=""):
    return f"finitude: step {alarm['step']}: {alarm['text']}, {alarm['action']}{more}\n"


def _say(text):
    rank, size = ranks.world()
    if size > 1:
        text = "".join(f"[rank {rank}] {line}" for line in text.splitlines(keepends=True))
    say(text)


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
