"""Training without an optimizer that writes no leaf: the program makes new leaves of the gradients (`w = (w - lr *
g).detach()`).

There is nothing to veto or to put back. A loss that is not finite, of finite leaves, was applied when the next
gradients are asked for of leaves like those that are not finite any more. Until then nobody knows. Where the loss had
been finite too, its gradients may have spoiled the leaves: a second run shows that."""

from __future__ import annotations

from .. import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..base.types import Tensor
    from ..report.document import Report
    from .functional import Unvetoed

NEVER = "a loss that was not finite was never applied"
NOT_SEEN = (
    "a loss that was not finite was not seen to be applied; the program makes new parameters "
    "where nothing can be watched"
)
PATIENCE = 16  # engine calls, as for other models, until one is for leaves like those
KEPT = 4


def _is_like(old, new):
    """Other tensors of the same shapes."""
    return sorted(x.shape for x in old) == sorted(x.shape for x in new) and not {id(x) for x in old} & {
        id(x) for x in new
    }


class Rebound:
    def __init__(self, report: Report, unvetoed: Unvetoed, name: str):
        """name: of what updates the parameters, for alarms."""
        self._report, self._unvetoed, self.name = report, unvetoed, name
        self.is_proven = False  # leaves like those of the call before had other values
        self.shapes: list[Any] = []  # of those leaves
        self.is_asked = False  # a second run has looked where leaves that are not finite came from
        self.is_damaged = False
        self.is_reported = False
        self.waiting = []  # [a bad step of finite leaves, how many calls more it waits]

    def compare(self, before: Sequence[Any] | None, leaves: Sequence[Tensor]) -> None:
        """before: what is known of the leaves of the last call, until that is proven."""
        if before and _is_like([m.leaf for m in before], leaves):
            self.is_proven = self.is_proven or sorted(m.sum for m in before) != sorted(map(_native.checksum, leaves))
            self.shapes = sorted(x.shape for x in leaves)

    def wait(self, bad: Any) -> None:
        """A bad step whose leaves nobody wrote. May raise NonFiniteError."""
        if self.is_damaged:
            return  # what was applied before is in every loss that follows
        if not all(_native.is_finite(m.leaf) for m in bad.marks):
            if self.is_proven and not self.is_asked and self.shapes == sorted(m.leaf.shape for m in bad.marks):
                self.is_asked = self.is_reported = True
                alarm = self._unvetoed.spoiled(self.name, bad)
                if alarm is not None:
                    self.is_damaged = True
                    self._unvetoed.report_spoiled(alarm)
            return
        if len(self.waiting) == KEPT:
            self._advise_unapplied(self.waiting.pop(0)[0], NOT_SEEN)
        self.waiting.append([bad, PATIENCE])
        _native.hand_watch(True)

    def look(self, leaves: Sequence[Tensor]) -> None:
        """Gradients are asked for of these. May raise NonFiniteError."""
        waiting, self.waiting = self.waiting, []
        for at, (bad, calls) in enumerate(waiting):
            old = [m.leaf for m in bad.marks]
            if _is_like(old, leaves) and not all(map(_native.is_finite, leaves)):
                self.is_damaged = self.is_reported = self.is_proven = True
                self._unvetoed.report_applied(
                    self.name,
                    bad,
                    "there is no optimizer, the program has made new parameters of its gradients",
                )
                return
            if _is_like(old, leaves) or any(x is y for x in old for y in leaves):
                self._advise_unapplied(bad, NEVER)
            elif calls > 1:
                self.waiting.append([bad, calls - 1])
            else:
                self._advise_unapplied(bad, NOT_SEEN)
        if self.waiting:
            _native.hand_watch(True)

    def _advise_unapplied(self, bad: Any, text: str) -> None:
        self.is_reported = True
        _native.add_handled(1)
        self._report.advise("handled-by-script", bad.step, text)

    def finish(self) -> None:
        while self.waiting:
            self._advise_unapplied(self.waiting.pop(0)[0], NOT_SEEN)
