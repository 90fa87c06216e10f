"""Training without an optimizer where the program cannot be started again: the window of a bad loss runs a second time
in place, from where the call of the engine before has returned.

By then that call's update had not been written yet: the second run writes it once more. Before an operator reads a leaf
it is given back what it held as the first run came to the loss (`_native.hold_values`), so that the forward pass begins
with the same weights, whatever the update adds up in the program's own tensors. Those go back afterwards, and the
program always continues from its first run."""

from __future__ import annotations

import sys

import torch

from .. import _native
from ..effects import fork_dry_run, name_liveness
from ..effects.files import written_twice
from ..effects.object_snapshot import Ledger
from ..program import optimizer_members, ranks, rng_generators
from ..report import incident
from .isolation import IsolatedRun
from .rewind import NOT_SO, OTHER_BITS, OTHER_NUMBERS, same_bits
from .way import note_rerun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..base.types import Alarm, Config, Findings, Rerun, RerunBy, Tensor
    from ..capsules.capsule import Capsules
    from ..report.document import Report
    from .restart import Restart

FIRST = "every op was recorded as the step ran (the first one is, where the program cannot be started again)"


class Explained:
    """What is known of a bad step before it is known whether it is applied."""

    def __init__(self):
        self.found: Findings | None = None
        self.by: RerunBy = "none"
        self.verified, self.text = False, ""


class InPlace:
    """Second runs in place of a program without an optimizer."""

    def __init__(
        self, config: Config, capsules: Capsules, restart: Restart, analysis: incident.Analysis, explains: bool
    ):
        """explains: this process explains a step of another one."""
        self._config, self._capsules, self._restart, self._analysis = config, capsules, restart, analysis
        self._explains = explains
        self._on_tape: Explained | None = None  # what is known of the step that the current tape is of

    def explained(self, roots: Sequence[Any]) -> tuple[list[int], Findings]:
        """What the trace shows of a bad loss: (checksums, findings)."""
        bad = [r for r in roots if isinstance(r, torch.Tensor) and not _native.is_finite(r)]
        sums = [_native.checksum(r) for r in bad]
        _native.trace_stop()
        for root in bad:
            _native.tape_outcome("loss", "loss", root.detach())
        return sums[:1], self._analysis.findings(None, [("loss", "loss", r) for r in bad])

    def note_on_tape(self, explained: Explained) -> None:
        self._on_tape = explained

    def first(self, roots: Sequence[Any], leaves: Sequence[Tensor]) -> bool:
        """The first call of the engine comes: what is noted from here on. True: also what a window needs to be run
        again."""
        numbers = [node._sequence_nr() for node in optimizer_members.nodes_of(roots) if not hasattr(node, "variable")]
        _native.hand_first(min(numbers, default=0))
        if optimizer_members.are_stepped(leaves):
            return False
        owned, again = {id(leaf) for leaf in leaves}, self._is_needed()
        buffers = [
            b
            for module in optimizer_members.instances(torch.nn.Module)
            if _holds(module, owned)
            for b in module.buffers()
        ]
        _native.watch_buffers(buffers)
        _native.hand_keep(bool(buffers), again)
        return again

    def _is_needed(self):
        """Not where the step can be explained by starting the program again. Of several ranks none goes back alone."""
        return (
            not self._explains
            and self._config.level == "gate"
            and self._config.on_alarm != "raise"
            and not self._restart.is_possible()
            and not ranks.several()
        )

    def of_first(self, roots: Sequence[Any]) -> Explained | None:
        """The first call of the engine was traced from before it on. Explained, where that explains it; None."""
        if not _native.has_traced_first_step():
            return None
        if all(not isinstance(r, torch.Tensor) or _native.is_finite(r) for r in roots):
            _native.first_step_over()
            return None
        explained = Explained()
        explained.found = self.explained(roots)[1]
        self._capsules.stop(None)
        explained.by, explained.text = "trace", FIRST
        self.note_on_tape(explained)
        return explained

    def apply(self, explained: Explained, alarm: Alarm) -> bool:
        """Into the alarm of that step. True: it is explained."""
        if explained.text and explained.found is None:
            incident.note_failed_way(alarm, explained.text)
        if explained.found is None or not incident.apply(alarm, explained.found):
            _native.tape_clear()
            return False
        rerun: Rerun = "not-run" if explained.by == "trace" else "persistent"
        note_rerun(alarm, explained.by, rerun, explained.verified, explained.text)
        if self._on_tape is explained and self._capsules.wanted():
            alarm["capsule"] = self._capsules.write(alarm, in_background=True)
        return True


def _holds(module, owned):
    try:
        return any(id(p) in owned for p in module.parameters())
    except Exception:  # a half-built module
        return False


class Again:
    """A second run: begun by `begin`, over with `end`."""

    def __init__(
        self,
        in_place: InPlace,
        capsules: Capsules,
        report: Report,
        bad: Any,
        roots: Sequence[Any],
        inputs: Sequence[Any],
        to_leaves: bool,
    ):
        self._in_place, self._capsules, self._report = in_place, capsules, report
        self._bad, self._to_leaves = bad, to_leaves
        self._roots, self._inputs = roots, [x for x in inputs if isinstance(x, torch.Tensor)]
        self.explained, self._counts_down = Explained(), False
        self._drawn, self._named = rng_generators.sums(), incident.in_names()

    def begin(self, down: Sequence[Callable[[], Any]] = ()) -> tuple[Any] | None:
        """What the call of the engine under way is to return for the window to run again, as a tuple of one; None: it
        does not."""
        returned, why = self._begin(down)
        if returned is None:
            if fork_dry_run.is_under_way():
                fork_dry_run.end(fork_dry_run.UNKNOWN)
            self.explained.text = f"rewind: {why}"
        return returned

    def _begin(self, down: Sequence[Callable[[], Any]]) -> tuple[Any, str]:
        if why := _native.rewind_by_hand(self._to_leaves):
            return None, why
        leaves = [m.leaf for m in self._bad.marks]
        self._ledger = ledger = Ledger(sys._getframe(), leaves, since=_native.rewind_since())
        if once := ledger.one_way or ledger.read_on:
            return None, f"{', '.join(once[:3])} cannot be rewound, and this step may have used it"
        if large := ledger.without_copy():
            return None, f"{', '.join(large[:3])} may be written by the update, and is too large to be copied"
        trained = leaves + [t for t in ledger.tensors() if t.requires_grad]
        if any(t.device.type != "cpu" or t.is_shared() for t in trained):
            return None, "the parameters lie on a device or are shared with other processes"
        rehearsed = fork_dry_run.Rehearsal(
            (),
            (),
            ledger,
            [self._bad.root.item()] if self._bad.root.numel() == 1 else None,
            lambda: False,
            lambda: OTHER_NUMBERS if self._drawn != rng_generators.sums() else "",
            tuple,
            lambda: _native.rewind_undo_obstacle() is None,
        ).hold(sys._getframe(), self._report.seconds() / max(1, _native.hand_calls()))
        if rehearsed is not None:  # in the process itself
            outcome, counted, other = rehearsed
            if outcome in (fork_dry_run.ASTRAY, fork_dry_run.OTHER) and not down and (earlier := ledger.down(counted)):
                self._counts_down = True
                return self._begin(earlier)
            if outcome == fork_dry_run.OTHER:
                return None, f"did not reproduce the step: {other or OTHER_BITS}"
            if outcome in NOT_SO:
                return None, NOT_SO[outcome].removeprefix(": ")
        return self._go_back(trained, down)

    def _go_back(self, trained, down):
        ledger, self._isolation = self._ledger, IsolatedRun(self._ledger)
        given = None if self._to_leaves else _native.hand_given() or tuple(map(torch.zeros_like, self._inputs))
        self._grads = [(t, t.grad) for t in trained]
        # Before the tracer, which is to see what is put back.
        _native.hold_values(trained, [t for t in ledger.tensors() if not t.requires_grad])
        if why := _native.rewind_begin():
            _native.release_values()
            return None, why
        if read := name_liveness.will_read(sys._getframe(), _native.unset_names()):
            _native.rewind_end(True)
            _native.rewind_undo()
            _native.release_values()
            return None, f"{', '.join(read[:3])} would be read again, and nothing keeps the value"
        ledger.second_run_begins()
        for t, grad in self._grads if self._to_leaves else ():
            t.grad = torch.zeros_like(t if grad is None else grad)
        for count in down:
            count()
        if fork_dry_run.is_under_way():
            return (given,), ""
        self._isolation.begin()
        self._isolation.record(self._capsules)
        return (given,), ""

    def end(self, roots: Sequence[Any]) -> bool:
        """The second run has come to a call of the engine. False: it is not the one it was to come to, and the program
        continues there."""
        explained, expected = self.explained, self._bad.expected
        _native.trace_stop()
        sums = [_native.checksum(r) for r in roots if isinstance(r, torch.Tensor) and not _native.is_finite(r)][:1]
        why = "" if sums == expected["losses"] or self._isolation.is_eager and sums else OTHER_BITS
        if not why and self._drawn != rng_generators.sums():
            why = OTHER_NUMBERS
        if not why and (names := incident.other_values(self._named)):
            why = f"{', '.join(names[:3])} came out with other values"
        if not why:
            explained.found = self._in_place.explained(roots)[1]
        self._capsules.stop(None)
        is_back, twice, lost = self._put_back()
        why = why or ("" if is_back else "the second run did not come back to this step")
        if why:
            explained.found = None
            _native.tape_clear()
            explained.text = f"rewind did not reproduce the step: {why}{twice}"
            return is_back
        self._in_place.note_on_tape(explained)
        explained.by, explained.verified = "rewind", sums == expected["losses"]
        explained.text = (
            "rewound to where gradients were last asked for and run again in place"
            + ", what it counts set back" * self._counts_down
            + ", eagerly instead of compiled" * self._isolation.is_eager
            + twice
            + (same_bits("the loss") if explained.verified else "; it failed again, with other bits")
        )
        if lost:
            explained.text += f"; it also wrote a second time, and this could not be put back: {', '.join(lost[:8])}"
        return True

    def lost(self) -> None:
        """The program has ended within the second run."""
        self._isolation.drop_recording()
        self._put_back(back=False)
        _native.hand_lost()
        self.explained.text = "rewind: the second run did not come back to this step"

    def _put_back(self, back=True):
        """The program continues from its first run. (could it be put back there, what was written to files, names of
        what was not put back)."""
        twice = written_twice(self._isolation.end())
        _native.rewind_end(back)
        lost = self._isolation.put_objects_back()
        for t, grad in self._grads:
            t.grad = grad
        _native.release_values()
        is_back = back and _native.rewind_undo()
        if not is_back:
            _native.rewind_forget()
            _native.hand_lost()
        _native.watch_writes([m.leaf for m in self._bad.marks])
        return is_back, twice, lost
