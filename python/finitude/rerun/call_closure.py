"""Training without an optimizer whose step finitude.step was given as a closure: the closure is called a second time in
place, from the same parameters and generators."""

from __future__ import annotations

import sys

import torch

from .. import _native
from ..effects.files import written_twice
from ..effects.object_snapshot import Ledger
from ..report import incident
from .isolation import IsolatedRun
from .way import note_rerun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..base.types import Alarm, Findings, Fingerprint
    from ..capsules.capsule import Capsules


class SecondCall:
    """Whoever hears of the engine calls of the closure passes what their traces show to `note`."""

    def __init__(self, closure: Callable[[], Any], marks: Sequence[Any], expected: Fingerprint, capsules: Capsules):
        """marks: the leaves as they were when their gradients were asked for. expected: of the first call."""
        self._closure, self._marks, self._expected, self._capsules = closure, marks, expected, capsules
        self._found: list[tuple[list[int], Findings]] = []

    def note(self, sums: list[int], found: Findings) -> None:
        self._found.append((sums, found))

    def run(self, alarm: Alarm) -> bool:
        """True: it did the same, and the alarm is explained. The program continues from its first call."""
        after = [(m.leaf, m.leaf.detach().clone()) for m in self._marks]
        isolation = IsolatedRun(Ledger(sys._getframe(), [m.leaf for m in self._marks]))
        state = torch.get_rng_state()
        isolation.begin(eagerly=False)
        for mark in self._marks:
            mark.put_back()
        _native.hand_restore()
        isolation.record(self._capsules)
        failed = None
        try:
            self._closure()
        except Exception as e:
            failed = e
        finally:
            _native.trace_stop()
            self._capsules.stop(None)
            twice = isolation.end()
            with torch.no_grad():
                for leaf, value in after:
                    leaf.copy_(value)
            isolation.put_objects_back()
            torch.set_rng_state(state)
        same = [found for sums, found in self._found if sums == self._expected["losses"]]
        if failed is not None or not same:
            _native.tape_clear()
            incident.note_failed_way(alarm, f"closure: {failed or 'the loss came out with other bits'}")
            return False
        incident.apply(alarm, same[0])
        text = "the closure was called again; the loss came out with the same bits" + written_twice(twice)
        note_rerun(alarm, "closure", "persistent", True, text)
        if self._capsules.wanted():
            alarm["capsule"] = self._capsules.write(alarm, in_background=True)
        return True
