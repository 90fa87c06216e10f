"""What is printed of an alarm while the program runs: the whole report, one line, or nothing."""

from __future__ import annotations

from ..base import secrets
from ..base.plain_json import safe
from ..base.say import say
from ..program import ranks
from ..report import one_line
from ..rerun.alarm_correlation import DIVERGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm, Cause, Document
    from ..report.document import Report

MOST_LINES = 10  # about alarms of one kind
FURTHER = "; further ones are only counted"
SOON = 10  # steps: what follows within them is the same divergence


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
        cause: Cause = {"class": "unknown", "confidence": "possible", "text": one_line.TO_COME, "experiments": []}
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
                return _line(alarm, f"; born as in step {first}: {one_line.born(birth)}"), None
        if (first := self._same_divergence(alarm)) is not None:
            where = (
                f"; the divergence of step {first['step']} of {first['optimizer']}: {one_line.born(alarm['births'][0])}"
            )
            return _line(alarm, where), None
        if (
            ranks.several()
            and alarm["sink"]["kind"] != "loss"
            and all(b["phase"] == "communication" for b in alarm["births"])
        ):
            return _line(alarm), None  # averaged gradients are bad everywhere; the rank whose own loss is bad says more
        document = self.report.document()
        document["alarms"] = safe(secrets.hidden([self.as_known(alarm)]))
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
