"""The second run that is under way in this process, and what the last one has left behind."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Pending, Vote


class SecondRun:
    def __init__(self):
        self.pending: Any = None  # Pending: the alarm that a rewind is to explain, from its begin to its end
        self.vote: Vote | None = None  # of the ranks that have just run a step again together
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

    def join(self, vote: Vote | None) -> None:
        """The ranks run the step together, or have done so; None: this process was alone."""
        self.vote = vote

    def note_recorded(self, recorded: bool = True) -> None:
        self.is_recorded = recorded

    def take_recorded(self) -> bool:
        """Whoever asks writes the capsule, or drops it."""
        recorded, self.is_recorded = self.is_recorded, False
        return recorded

    def note_without_tensor(self, is_without: bool = True) -> None:
        self.is_without_tensor = is_without
