"""What a person is told of an alarm while the program runs: the whole report, one line, or nothing."""

import os
import sys

from ..base.plain_json import safe
from ..program import ranks

MOST_LINES = 10   # about alarms of one kind
MOST_LISTED = 4   # rows or samples in one line


class Teller:
    def __init__(self, report):
        self.report = report
        self.show = None     # takes a report (document, text) instead of stderr, and says whether it did
        self.later = None    # an alarm that a second run of all ranks is to explain once they have ended
        self._told = {}      # what kind of alarm -> how often it was told of in one line
        self._births = {}    # place of a birth -> the step whose report told of it

    def tell(self, alarm, brief=False):
        """The report of an alarm; of one like others before, that no second run explained, one line; of many, nothing.
        brief: the alarm before it has said the same."""
        if brief:
            self._line(alarm, f" ({alarm['rerun_text']})")
            return
        what = (alarm["sink"]["kind"], alarm["harmless"], alarm["optimizer"])
        if alarm["rerun_by"] == "none" and what in self._told and "stopped" not in alarm["action"]:
            self._told[what] += 1
            if self._told[what] <= MOST_LINES:
                self._line(alarm, "; further ones are only counted" if self._told[what] == MOST_LINES else "")
            return
        self._told.setdefault(what, 0)
        if alarm["births"] and "stopped" not in alarm["action"]:
            birth = alarm["births"][0]
            place = alarm["optimizer"], *(birth[key] for key in ("phase", "op", "file", "line", "module", "node")), alarm["cause"]["class"]
            if (first := self._births.setdefault(place, alarm["step"])) != alarm["step"]:
                self._line(alarm, f"; born as in step {first}: {_place_in_words(birth)}")
                return
        if ranks.several() and alarm["sink"]["kind"] != "loss" and all(b["phase"] == "communication" for b in alarm["births"]):
            self._line(alarm)  # averaged gradients are bad everywhere; the rank whose own loss is bad tells more
            return
        document = self.report.document()
        document["alarms"] = safe([alarm if alarm is not self.later else _to_come(alarm)])
        document["advisories"] = []
        document.pop("trace", None)
        text = self.report.text(document)
        if self.show is None or not self.show(document, text):
            _say(text)

    def _line(self, alarm, more=""):
        _say(f"finitude: step {alarm['step']}: {alarm['text']}, {alarm['action']}{more}\n")


def _place_in_words(birth):
    words = birth["op"] or birth["phase"]
    if birth["file"]:
        words += f" at {os.path.basename(birth['file'])}:{birth['line']}"
    for what, many in (("row", birth.get("rows")), ("sample", birth.get("samples"))):
        if many:
            listed = ", ".join(map(str, many[:MOST_LISTED])) + (f" and {len(many) - MOST_LISTED} more" if len(many) > MOST_LISTED else "")
            words += f", {what}{'s' if len(many) > 1 else ''} {listed}"
    return words


def _to_come(alarm):
    """As it is told of before its explanation, which is not there yet, and needs no other level."""
    cause = {**alarm["cause"], "text": "being explained: all ranks are run again together once they have ended"}
    return {**{key: value for key, value in alarm.items() if key != "level"}, "cause": cause}


def _say(text):
    rank, size = ranks.world()
    if size > 1:
        text = "".join(f"[rank {rank}] {line}" for line in text.splitlines(keepends=True))
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
