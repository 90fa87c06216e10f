"""One finding is explained once. An alarm that fails as an explained one did is not run again: it is a repeat, and says
of which step. What it fails by is not known then, but that its weights have diverged as those of the step before."""

from __future__ import annotations

import itertools

from .. import _native
from ..program import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm

DIVERGES = frozenset({"learning-rate", "exploding-gradient"})  # each later step fails by the same weights
MOVES_WEIGHTS = DIVERGES | {"optimizer-arithmetic"}  # what a step writes on such weights follows from them
FRAMES = 8  # of the program, the innermost, that tell one place from another
BY_CHANCE = 3  # explained steps in a row after which those that follow are repeats, though each has its own bad samples


def _sign(ordinal, alarm):
    """What alarms of one finding have in common before any of them is explained, as far as it costs nothing: of a loss
    also the kinds of operations that made it, and where the program is."""
    sink = alarm["sink"]
    is_loss = sink["kind"] == "loss"
    value = alarm["loss"] if is_loss and isinstance(alarm["loss"], str) else None
    graph = _native.graph_of_bad_loss() if is_loss else 0
    frames = itertools.islice(optimizer_members.user_frames(), FRAMES)
    place = tuple((f.f_code.co_name, f.f_code.co_filename, f.f_lineno) for f in frames)
    return ordinal, sink["kind"], "" if is_loss else sink["name"], alarm["harmless"], value, graph, place


def _point_to(first, alarm, text):
    alarm["repeat_of"] = first["step"]
    alarm["cause"] = {"class": first["cause"]["class"], "confidence": "possible", "experiments": [], "text": text}


class Repeats:
    def __init__(self):
        self._first = {}  # sign -> the alarm that is explained
        # number of an optimizer -> its last alarm's step, how many in a row are explained, how many there are
        self._row = {}
        self._explained_signs = {}  # number of an optimizer -> the sign of its last explained alarm
        self._signs = {}  # number of an optimizer -> (step, sign) of the last alarm that was asked about
        self._diverged: dict[int, Alarm] = {}  # number of an optimizer -> its last explained alarm, of a divergence
        self._explained: dict[int, Alarm] = {}  # number of an optimizer -> its last explained alarm

    def take_written(self, alarm: Alarm) -> bool:
        """Is what the step wrote explained by the alarm of its loss, which came of weights that had grown?"""
        first = self._explained.get(alarm["optimizer_ordinal"])
        if first is None or first["step"] != alarm["step"] or first["cause"]["class"] not in MOVES_WEIGHTS:
            return False
        _point_to(first, alarm, "explained with the loss of this step; not run again")
        return True

    def take_applied(self, alarm: Alarm, ordinal: int, applied: int | None) -> bool:
        """Is it one of the bad steps behind an explained one that was applied? applied: the first that was."""
        first = self._explained.get(ordinal)
        if first is None or applied != first["step"] or not applied < alarm["step"]:
            return False
        _point_to(first, alarm, f"step {applied}, which is explained, was bad and was applied; not run again")
        return True

    def take(self, alarm: Alarm, is_damaged: bool = False) -> bool:
        """Is it one? A step without harm, or one that follows without a good step between. Where only some samples were
        bad each step may have its own. is_damaged: a bad step was applied, and what it left may fail in other places.
        """
        ordinal = alarm["optimizer_ordinal"]
        last, explained, _ = self._row.get(ordinal, (None, 0, 0))
        in_a_row = last is not None and alarm["step"] == last + 1
        sign = _sign(ordinal, alarm)
        self._signs[ordinal] = alarm["step"], sign  # before a second run, which may end in another place
        first = self._first.get(sign) or (self._follows(ordinal, sign, is_damaged) if in_a_row else None)
        if first is None or first["step"] == alarm["step"]:
            return False
        diverges = first["cause"]["class"] in DIVERGES
        own_samples = not diverges and bool(first["births"][0].get("rows")) and explained < BY_CHANCE
        if not alarm["harmless"] and (not in_a_row or own_samples):
            return False
        text = (
            f"as step {first['step']}, which is explained: the weights have diverged; not run again"
            if diverges and in_a_row
            else f"at the same sink as step {first['step']}, which is explained; this step was not run again"
        )
        _point_to(first, alarm, text)
        return True

    def _follows(self, ordinal, sign, is_damaged):
        """The explained alarm before it that this one comes of, or None."""
        last = self._explained_signs.get(ordinal) if is_damaged else None
        return self._first[last] if last and last[:5] == sign[:5] else self._diverged.get(ordinal)

    def stopped(self) -> None:
        """The program was stopped. What it does after that, in another cell or behind an `except`, is explained for
        itself, unless it continues with weights that have diverged."""
        self._row = {ordinal: row for ordinal, row in self._row.items() if ordinal in self._diverged}

    def row(self, ordinal: int) -> int:
        """How many alarms in a row, one for each step."""
        return self._row[ordinal][2] if ordinal in self._row else 0

    def note(self, ordinal: int, alarm: Alarm) -> None:
        """An alarm that is decided."""
        last, explained, length = self._row.get(ordinal, (None, 0, 0))
        if last is None or alarm["step"] not in (last, last + 1):
            explained = length = 0
        is_explained = bool(alarm["births"]) and alarm.get("rerun_by", "none") != "none"
        self._row[ordinal] = alarm["step"], explained + is_explained, length + (length == 0 or alarm["step"] != last)
        if is_explained and "repeat_of" not in alarm:
            self._explained[ordinal] = alarm
            self._diverged.pop(ordinal, None)
            if alarm["cause"]["class"] in DIVERGES:
                self._diverged[ordinal] = alarm
            asked_at, sign = self._signs.get(ordinal, (None, None))
            sign = sign if asked_at == alarm["step"] else _sign(ordinal, alarm)
            first = self._first.setdefault(sign, alarm)
            self._explained_signs[ordinal] = sign
            if first["births"][0]["op"] and alarm["births"][0]["phase"] == "state":
                self._first[sign] = alarm  # those behind it begin with the same
