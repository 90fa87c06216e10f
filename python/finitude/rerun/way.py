"""The type of a way to explain a bad step, which most do by running it again. ladder.py lists them in their order."""

from __future__ import annotations

import dataclasses

from ..report import incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..base.types import Alarm, Fingerprint, Optimizer, Parts, Rerun, RerunBy, Sink, Tensor, Vote, Where


@dataclasses.dataclass
class BadStep:
    """What a way is tried on."""

    session: Parts
    optimizer: Optimizer | None
    alarm: Alarm
    sinks: Sequence[Sink]
    where: Where = "window"  # the bad value is
    undone: bool = False  # what the step wrote has been put back
    loss: Tensor | None = None  # the bad one that a search along a line began with
    vote: Vote | None = None  # of several ranks, which run the step again together or not at all
    expected: Fingerprint | None = None  # of the step, where the open window is of a later one by now
    is_dropped: bool = False  # by the script or by an exception: only the birth of the value is still of interest


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The way has served: the alarm says why the step is bad, or will when its window has run again."""

    runs_again: bool = False  # by returning from the vetoed call
    found_in: str = ""  # where a second process found the bad value, see restart.run


@dataclasses.dataclass(frozen=True)
class Refused:
    """The way does not serve, and the next one is to be tried."""

    reason: str = ""  # for the alarm; "" where there is nothing to say


@dataclasses.dataclass(frozen=True)
class Way:
    """name: `rerun_by` of an alarm that it has explained, and the first word of why it did not serve. attempt: writes
    what it found into the alarm. Why it found nothing it returns, and whoever asked notes that."""

    name: RerunBy
    attempt: Callable[[BadStep], Outcome | Refused]

    def refuses(self, why: str) -> Refused:
        return Refused(f"{self.name}: {why}")


def note_rerun(alarm: Alarm, by: RerunBy, rerun: Rerun, verified: bool, text: str) -> None:
    """How the step was run again and how it came out, into the alarm. verified: loss and gradients have the bits of the
    first run."""
    alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"] = rerun, by, verified
    alarm["rerun_text"] = text


def serves(outcome: Outcome | Refused, alarm: Alarm) -> bool:
    """Has the way served? Else its reason is noted in the alarm."""
    if isinstance(outcome, Refused):
        if outcome.reason:
            incident.note_failed_way(alarm, outcome.reason)
        return False
    return True


def _unguarded(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def climb(ways: Iterable[Way], step: BadStep, guard: Callable[..., Any] = _unguarded) -> Outcome | None:
    """Tries one after another; what the first that serves has come to, None where none does.

    guard: calls each of them, and returns None for one that fails (Failures.part): then the next is tried."""
    for way in ways:
        outcome = guard(way.attempt, step)
        if outcome is not None and serves(outcome, step.alarm):
            return outcome
    return None
