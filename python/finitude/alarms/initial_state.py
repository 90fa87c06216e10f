"""What a run begins with: parameters, optimizer state and statistics that were bad before any step was taken."""

from __future__ import annotations

import weakref

import torch

from .. import _native
from ..base.kinds import is_a
from ..base.unseen import unseen
from ..program import optimizer_members, sinks as sinks_of
from ..program.tensor_stats import count_text, listed
from ..report import incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Alarm, Confidence, Context, Optimizer, Sink, SinkKind, Tensor, Verdict


@unseen
def bad(optimizer: Optimizer, allowed: Sequence[Tensor]) -> Sink | None:
    """(kind of sink, name, tensor) of the first that is not finite before the first step of the optimizer, or None.

    allowed: tensors that the program declared to be as they are.
    """
    # Names are looked up only for what is bad: reading a frame's locals makes older Pythons keep them.
    for i, p in enumerate(optimizer_members.parameters(optimizer)):
        is_bad = p.requires_grad and not _native.is_finite(p) and sinks_of.is_result(optimizer, p)
        if is_bad and not any(p is a for a in allowed):
            return "parameter", optimizer_members.names(optimizer)[i], p
    for i, p in enumerate(optimizer_members.parameters(optimizer)):
        state = optimizer.state.get(p)
        for key, value in (state or {}).items():
            if is_a(value, torch.Tensor) and _has_nan(value):
                return "state", f"{optimizer_members.names(optimizer)[i]}.{key}", value
    # A statistic that is NaN while the loss is finite, or in a module that only evaluates, was so before this forward.
    loss_bad = any(loss["bad"] for loss in _native.window(optimizer)["losses"])
    for name, value, training in optimizer_members.normalisation_statistics(optimizer):
        if not (training and loss_bad) and _has_nan(value):
            return "buffer", name, value
    return None


def _has_nan(tensor):
    if _native.is_finite(tensor):  # which a device reports without handing its values over
        return False
    s = _native.statistics(tensor)
    return bool(s and s["nan"])


class InitialState:
    """The alarms of what optimizers began with."""

    def __init__(self, context: Context):
        self._context = context
        self.is_any = False  # such an alarm has been decided, and its optimizer may step yet
        self._decided = weakref.WeakKeyDictionary()  # optimizer -> (its step, what came of the alarm)

    def alarm(self, optimizer: Optimizer, kind: SinkKind, name: str, tensor: Tensor) -> Alarm:
        context = self._context
        alarm = context.alarms.of(optimizer, kind, name)
        alarm["text"] = _native.held_before_text(name, count_text(tensor))
        if kind != "buffer":
            alarm["weights"], alarm["action"] = "damaged", _native.action_text("stop", at_start=True)
        held = f"{name} held {count_text(tensor)} before "
        applied = (
            next((a for a in context.report.alarms if a["weights"] == "damaged"), None) if context.damage else None
        )
        confidence: Confidence = "likely"
        text = "any step was taken: a bad checkpoint, a bad initial value, or memory that nobody had written"
        if applied is not None:  # of a training in parts the last part begins with what the one before has left
            confidence = "possible"
            text = (
                f"the first step of {alarm['optimizer']}: step {applied['step']} of "
                f"{applied['optimizer']}, which was bad, has been applied "
                "before; else it is a bad checkpoint or initial value"
            )
        alarm["cause"] = incident.cause("corrupted-state", held + text, confidence)
        alarm["births"] = [{**incident.birth("state"), "outputs": listed(name, tensor)}]
        return alarm

    def decided(self, optimizer: Optimizer, verdict: Verdict) -> Verdict:
        """The program continues: that alarm is the one of its first step, too. verdict: True, the step is skipped;
        None, it is applied."""
        window = _native.window(optimizer)
        self._decided[optimizer] = window["step"], verdict
        self.is_any = True
        self._context.damage.mark(window["ordinal"])
        return verdict

    def verdict_at(self, optimizer: Optimizer, step: int) -> tuple[Verdict] | None:
        """(what was decided of that step,) where it was by such an alarm, or None."""
        return (self._decided[optimizer][1],) if self._decided.get(optimizer, (None,))[0] == step else None
