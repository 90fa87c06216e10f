"""Trainable parameters that no step of their optimizer ever wrote: they never had a gradient.

Each in-place write raises the version of a tensor, so two reads of it show this: one before the first step, one when
the optimizer is gone or the program ends. Nothing is done in a step between."""

from __future__ import annotations

import weakref

from ..base.unseen import unseen
from ..program import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Optimizer
    from ..report.document import Report

KIND = "never-trained"
FEWEST = 400  # writes to the others: 100 steps or more, as no optimizer of torch writes a parameter more than 4 times
MOST_NAMED = 8
MOST_PARAMETERS = 100_000


class NeverWritten:
    """The parameters are known by weak references: none is kept alive. part: guards what is called (failures.py)."""

    def __init__(self, report: Report, part: Callable[..., Any]):
        self._report, self._guard = report, part
        self._begun: dict[int, tuple[Any, str, list[tuple[Any, str, int]]]] = {}

    @unseen
    def note_start(self, optimizer: Optimizer) -> None:
        """Its first step comes."""
        named = zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer))
        began = [(weakref.ref(p), name, p._version) for name, p in named if p.requires_grad][:MOST_PARAMETERS]
        key = id(optimizer)
        # Its parameters are still there when the optimizer is freed: it holds them until after the call.
        gone = weakref.ref(optimizer, lambda _: self._guard(self._judge_writes, key))
        self._begun[key] = gone, type(optimizer).__name__, began

    def at_end(self) -> None:
        for key in list(self._begun):
            self._judge_writes(key)

    @unseen
    def _judge_writes(self, key):
        _, optimizer, began = self._begun.pop(key, (None, "", []))
        now = [(name, p, p._version - version) for weak, name, version in began if (p := weak()) is not None]
        written = max((writes for _, _, writes in now), default=0)
        never = [name for name, p, writes in now if writes == 0 and p.requires_grad]
        if written < FEWEST or not never:
            return
        more = f" and {len(never) - MOST_NAMED} more" if len(never) > MOST_NAMED else ""
        self._report.advise(
            KIND,
            None,
            f"{len(never)} of {len(now)} parameters of {optimizer} were never written, others up to {written} times: "
            f"{', '.join(never[:MOST_NAMED])}{more}. No loss reached them; finitude doctor shows where autograd "
            f"loses them",
        )
