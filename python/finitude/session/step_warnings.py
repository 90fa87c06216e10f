"""Warnings of the engine (src/signal/step_watch.h): what is noticed of a training while its values are still finite.
Each is an event on disk, an entry of the report, and but for an outlier one line on stderr. It stops nothing."""

from __future__ import annotations

import json

from .. import _native
from ..base.say import say
from ..program import optimizer_members, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Config, Optimizer, StepWarning
    from ..report.document import Report
    from .control import Control

MOST_LINES = 40  # on stderr; later ones are in the report and in events.jsonl


class StepWarnings:
    def __init__(self, config: Config, report: Report, control: Control, part: Callable[..., Any], explains: bool):
        """part: calls its argument, and notes an internal failure. explains: this process explains a step of another
        one, and warns of nothing."""
        self._report, self._control, self._in_guard = report, control, part
        self._wanted = config.warnings or "off"
        self._lines = MOST_LINES if config.quiet else 0
        _native.set_signals(self._wanted != "off" and not explains, config.grad_warn)

    def add(self, optimizer: Optimizer, warnings: str) -> None:
        """A step was applied, and the course of the training is worth a warning. warnings: a JSON array of the
        engine's."""
        names, kind = optimizer_members.names(optimizer), type(optimizer).__name__
        ordinal = _native.window(optimizer)["ordinal"]
        wanted = self._control.asked().get("warnings", self._wanted)
        if wanted == "off":
            return
        entries = json.loads(_native.warning_entries(warnings, wanted, names, kind))
        dead = [one for one in entries if one["what"] == "dead"]  # of a whole network there are many at once: one line
        for one in entries:
            self._in_guard(self._add, one, len(dead) - 1 if one in dead[:1] else 0, one in dead[1:])
            # A spike is said once it has stayed; the rows that made the loss jump are those of its first step.
            is_jump = one["what"] in ("spike", "outlier")
            step, event = (one["since"], "spike") if is_jump else (one["step"], "warning")
            self._in_guard(_native.note_event_in_store, ordinal, step, event)

    def _add(self, warning: StepWarning, more: int, is_said: bool):
        """more: warnings that the line of this one speaks of as well; is_said: the line of another one does."""
        self._report.warn(warning)
        if is_said or warning["what"] == "outlier":  # an outlier is over; one that stays is a spike
            return
        self._lines += 1
        if self._lines <= MOST_LINES:
            rank, size = ranks.world()
            of_rank = f"[rank {rank}] " if size > 1 else ""
            last = "; further warnings are only recorded" if self._lines == MOST_LINES else ""
            also = f", and {more} more" if more else ""
            say(f"{of_rank}finitude: warning: step {warning['step']}: {warning['text']}{also}{last}\n")
