"""Bad steps that are skipped: the program continues as if its loop had said `continue`."""

from __future__ import annotations

from .. import _native
from ..program import optimizer_members, sinks as sinks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Optimizer
    from ..program.batch_source import Draws
    from ..program.grad_scaler import Scaling
    from .scheduler_hold import Holds


class SkippedSteps:
    """Which they were, and what they need."""

    def __init__(self, guard: Callable[..., Any], draws: Draws, holds: Holds, scaling: Scaling):
        """guard: around each part (Failures.part)."""
        self._guard, self._draws, self._holds, self._scaling = guard, draws, holds, scaling
        self.decided: list[list[Any]] = []  # [optimizer's number, step, what was raised or "", windows
        # that a GradScaler had skipped by then]

    def note(self, ordinal: int, step: int, raised: str = "") -> None:
        """A step of that optimizer is skipped. raised: what the program was given for it."""
        self.decided.append([ordinal, step, raised, self._scaling.skipped[ordinal]])

    def continue_without(self, optimizer: Optimizer, step: int) -> bool:
        """Everything continues as if the loop had said `continue` right after the batch of that step was fetched (see
        Draws). True, the verdict."""
        self._guard(self._draws.left_out, optimizer, step)
        held = sinks_of.watched_optimizers() if _native.backward_under_way() else optimizer_members.sharing(optimizer)
        self._holds.leave_out(held, step, self._scaling.scaler)
        return True
