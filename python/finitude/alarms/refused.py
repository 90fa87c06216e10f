"""An exception that ended the program over a value that is not finite and of which no tensor is left, and
what else lay around as it ended.

Such an exception is an alarm where a name still holds the value (an array, a number), or where the step,
run again, shows what the last operator saw. Values that merely lay around are named in one line, and
nothing is claimed of them.
"""

from __future__ import annotations

import sys

from .. import _native
from ..base import sources
from ..errors import raised_from_ours
from ..program import frames_at_raise, sinks as sinks_of
from ..report import incident
from ..report.merge import SEEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._native import Known
    from ..base.types import Alarm, BadWindow, Context

# seconds up to the exception: a program that took longer is not run again to see whether there is such a
# value
LONGEST = 300
MOST_NAMED = 3


class RefusedValues:
    """What exceptions that ended the program were about, where no tensor is left."""

    def __init__(self, context: Context, known: Known, debug: bool):
        """known: bad tensors of earlier alarms. debug: an internal failure is printed."""
        self._context, self._known, self._debug = context, known, debug

    def found(self, error: BaseException | None) -> BadWindow | None:
        """(optimizer, alarm, []) of an exception that is about such a value; its alarm holds what is known, or
        None. After an alarm a number may be of the step that was reported."""
        try:
            if raised_from_ours(error) or self._context.report.alarms:
                return None
            raised = frames_at_raise.look(error, self._known.__contains__)
            return self._alarm(error, raised)
        except Exception as e:  # the exception is the program's, whatever becomes of this
            if self._debug:
                sys.stderr.write(f"finitude: {type(e).__name__} in refused.found: {e}\n")
            return None

    def unproven(self, alarm: Alarm, error: BaseException | None, what: str) -> None:
        """The step, run again, did not show where such a value was born. what: is known of it."""
        self._context.report.forget_unexplained()
        how = f" ({alarm['rerun_text']})" if alarm["rerun_text"] else ""
        self._context.report.advise(
            SEEN,
            alarm["step"],
            f"as {type(error).__name__} ended the program, {what}; nothing shows a birth{how}",
        )

    def _alarm(self, error: BaseException | None, raised: frames_at_raise.Raised) -> BadWindow | None:
        optimizers = sinks_of.watched_optimizers()
        if raised.refused:
            seen = raised.refused[0]
            if not optimizers:
                self._advise_seen(error, raised.refused)
                return None
            alarm = self._context.alarms.of(optimizers[0], "loss", seen.name)
            alarm["text"] = sinks_of.describe(seen)
            alarm["births"] = _made_at(seen)
            return optimizers[0], alarm, []
        if (
            (raised.asks or raised.handed)
            and optimizers
            and self._context.config.on_alarm != "raise"
            and (self._is_traced() or self._context.report.seconds() <= LONGEST)
        ):
            name = raised.handed[0].name if raised.handed else "a value"
            alarm = self._context.alarms.of(optimizers[0], "loss", name)
            alarm["text"] = (
                sinks_of.describe(raised.handed[0]) if raised.handed else "a value that has no name is not finite"
            )
            alarm["unproven"] = alarm["text"] if raised.handed else "no value was found that the exception is about"
            return (
                optimizers[0],
                alarm,
                [("loss", seen.name, seen.value) for seen in raised.handed if seen.is_tensor],
            )
        self._advise_seen(error, raised.handed + raised.around)
        return None

    def _is_traced(self):
        return self._context.config.level == "trace" or _native.has_traced_first_step()

    def _advise_seen(self, error: BaseException | None, around: Sequence[Any]) -> None:
        """One line of what lay around."""
        if not around:
            return
        named = [sinks_of.describe(seen) for seen in around[:MOST_NAMED]]
        more = f" and {len(around) - MOST_NAMED} more" if len(around) > MOST_NAMED else ""
        self._context.report.advise(
            SEEN,
            _native.counters()["steps"],
            f"as {type(error).__name__} ended the program, {', '.join(named)}{more}; nothing shows that "
            "the exception is about that",
        )


def _made_at(seen):
    """Of an array or number, the line that set its name last: no operator is seen where NumPy and Python
    compute."""
    line = seen.made_at()
    if not line:
        return []
    return [
        {
            **incident.birth("forward", "", seen.file, line),
            "source": sources.line(seen.file, line),
            "name": seen.name,
        }
    ]
