"""Failures of our own: each costs the part of an explanation that it happens in, is reported once, and ends nothing
else. The alarm that is acted on meanwhile is known here, for minimal.py."""

from __future__ import annotations

import dataclasses
import os
import traceback

from .. import _native
from ..base import HOME
from ..base.say import say
from ..effects import fork_dry_run
from ..errors import GivesWay, NonFiniteError, Reached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm
    from ..report.document import Report

PASSES = NonFiniteError, KeyboardInterrupt, SystemExit, Reached, GivesWay  # no failures
MOST_SAID = 5
MOST_LISTED = 100


@dataclasses.dataclass
class Acting:
    """An alarm that is being acted on. written: by a step that was applied, and undone or not; action: as the policy
    machine said; ordinal: the optimizer's number, which the alarm loses once it is concluded, None: it still has it. It
    has no function of its own, so none can fail."""

    alarm: Alarm
    written: bool = False
    undone: bool = False
    action: str | None = None
    ordinal: int | None = None


class ActedOn:
    """The alarm that is being explained or decided about, if any."""

    def __init__(self):
        self._one: Acting | None = None

    def begin(self, alarm: Alarm, written: bool = False, undone: bool = False, action: str | None = None) -> None:
        self._one = Acting(alarm, written, undone, action, alarm.get("optimizer_ordinal", 0))

    def note_action(self, action: str) -> None:
        """As the policy machine says: it counts, so it is asked once."""
        if self._one is not None:
            self._one.action = action

    def take(self) -> Acting | None:
        one, self._one = self._one, None
        return one

    def forget(self) -> None:
        self._one = None


class Failures:
    """debug: each is printed with its traceback."""

    def __init__(self, report: Report, debug: bool = False):
        self._report, self._debug = report, debug

    def part(self, call: Callable[..., Any], *args: Any, otherwise: Any = None, **more: Any) -> Any:
        """What the call returns; `otherwise` where it fails."""
        try:
            return call(*args, **more)
        except PASSES:
            raise
        except BaseException as e:
            self.note(e)
            return otherwise

    def note(self, error: BaseException) -> None:
        """Raises nothing, not even where memory is short."""
        try:
            if fork_dry_run.is_under_way():
                fork_dry_run.end(fork_dry_run.UNKNOWN)  # the process itself is to meet it
            self._note(error)
        except BaseException:
            self._report.failures.append({"where": "", "text": type(error).__name__, "step": 0, "times": 1})

    def _note(self, error: BaseException) -> None:
        listed = self._report.failures
        where, text = _place(error), f"{type(error).__name__}: {str(error)[:300]}".rstrip(": ").partition("\n")[0]
        for one in listed:
            if (one["where"], one["text"]) == (where, text):
                one["times"] += 1
                return
        if len(listed) < MOST_LISTED:
            listed.append({"where": where, "text": text, "step": _native.counters()["steps"], "times": 1})
        if len(listed) <= MOST_SAID:
            say(
                f"finitude: internal failure at {where} ({text}); it costs part of an explanation, "
                "steps are watched as before.\n"
            )
        if self._debug:
            say("".join(traceback.format_exception(type(error), error, error.__traceback__)))


def _place(error):
    """The innermost line of finitude."""
    found, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if path.startswith(HOME + os.sep) and trace.tb_frame.f_code.co_name != "part":
            found = f"{path[len(HOME) + 1 :]}:{trace.tb_lineno} ({trace.tb_frame.f_code.co_name})"
        trace = trace.tb_next
    return found or "an unknown place"
