"""Warnings of the engine (src/signal/step_watch.h): what is noticed of a training while its values are still finite.
Each is an event on disk, one line on stderr, and an entry of the report. It stops nothing."""

from __future__ import annotations

import json

from .. import _native
from ..base.config import WARNINGS
from ..base.say import say
from ..program import optimizer_members, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Config, Optimizer, StepWarning
    from ..report.document import Report

MOST_LINES = 40  # on stderr; later ones are in the report and in events.jsonl


class StepWarnings:
    def __init__(self, config: Config, report: Report, part: Callable[..., Any], explains: bool):
        """part: calls what it is given, and notes a failure of ours. explains: this process explains a step of another
        one, and warns of nothing."""
        self._report, self._in_guard = report, part
        self._wanted = wanted(config.warnings)
        self._lines = MOST_LINES if config.quiet else 0
        _native.set_signals(bool(self._wanted) and not explains)

    def add(self, optimizer: Optimizer, warnings: str) -> None:
        """A step was applied, and the course of the training is worth a warning. warnings: a JSON array of the
        engine's."""
        for one in json.loads(warnings):
            if one["what"] in self._wanted:
                self._in_guard(self._add, optimizer, one)

    def _add(self, optimizer, one):
        name = _name(optimizer, one)
        text = _native.warning_text(json.dumps([one]), name)
        warning: StepWarning = {
            "what": one["what"],
            "name": name,
            "step": one["step"],
            "since": one["since"],
            "optimizer": type(optimizer).__name__,
            "text": text,
            "evidence": {
                "from": one["from"],
                "to": one["to"],
                "factor_per_step": one["factor"],
                "learning_rate": one["lr"],
            },
            "horizon": one["horizon"],
        }
        self._report.warn(warning)
        self._lines += 1
        if self._lines <= MOST_LINES:
            rank, size = ranks.world()
            of_rank = f"[rank {rank}] " if size > 1 else ""
            last = "; further warnings are only recorded" if self._lines == MOST_LINES else ""
            say(f"{of_rank}finitude: warning: step {one['step']}: {text}{last}\n")


def wanted(option: str) -> frozenset[str]:
    """The kinds that --warnings names."""
    if option in ("", "off"):
        return frozenset()
    return frozenset(WARNINGS if option == "all" else option.replace(" ", "").split(","))


def _name(optimizer: Optimizer, one: dict[str, Any]) -> str:
    """Of the parameter, where the warning is of one; "loss" or "gradient" else."""
    at = one["parameter"]
    if at is None or (one["what"] == "growth" and one["widespread"]):
        return "loss" if one["of_loss"] else "gradient"
    names = optimizer_members.names(optimizer)
    return names[at] if at < len(names) else f"parameter {at}"
