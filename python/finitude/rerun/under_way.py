"""The second run that is under way in this process, what the last one has left behind, and how many there may be."""

from __future__ import annotations

from .. import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Findings, OnAlarm, Pending, Vote


class SecondRun:
    def __init__(self):
        self.pending: Any = None  # Pending: the alarm that a rewind is to explain, from its begin to its end
        self.vote: Vote | None = None  # of the ranks that are in the last alarm
        self.is_recorded = False  # the step of the last alarm is on the tape: its capsule is yet to be written
        self.is_without_tensor = False  # no tensor holds the bad value any more, only an exception shows it

    def begin(self, pending: Pending) -> None:
        self.pending = pending

    def take(self) -> Any:
        """It is over: what was pending, or None. Its vote stays until the alarm is decided."""
        pending, self.pending = self.pending, None
        return pending

    def give_up(self) -> Any:
        """An internal failure has ended it. Shares nothing with what may have failed by then."""
        pending, self.pending, self.is_recorded = self.pending, None, False
        return pending

    def note_before(self, twice: list[str], shorter: Findings | None) -> None:
        """Of second runs before this one: names of what they wrote twice; what one that began later has found."""
        self.pending.update(twice=twice, shorter=shorter)

    def join(self, vote: Vote | None) -> None:
        """They were asked whether they run the step again together; None: this process was alone."""
        self.vote = vote

    def note_recorded(self, recorded: bool = True) -> None:
        self.is_recorded = recorded

    def take_recorded(self) -> bool:
        """Whoever asks writes the capsule, or drops it."""
        recorded, self.is_recorded = self.is_recorded, False
        return recorded

    def note_without_tensor(self, is_without: bool = True) -> None:
        self.is_without_tensor = is_without


class SecondRuns:
    """How many second runs there are still to be, of a kind and in all: `left` (src/decide/policy.h) is asked."""

    def __init__(self, on_alarm: OnAlarm):
        self._on_alarm = on_alarm
        self.begin()

    def begin(self) -> None:
        """Counts from zero: a program begins, or a cell of a notebook, which is one by itself."""
        self.left = _native.SecondRuns(self._on_alarm)

    def begin_with(self, on_alarm: OnAlarm) -> None:
        """The same under another policy."""
        self._on_alarm = on_alarm
        self.begin()
