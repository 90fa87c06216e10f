"""Training without an optimizer: a step is one outermost engine call followed by writes to the leaves below it, or what
`finitude.step` says. A manual update cannot be kept from being written, so it is put back."""

from __future__ import annotations

import sys

import torch

from .. import _native
from ..base.plain_json import number
from ..effects.object_snapshot import Ledger
from ..errors import NonFiniteError
from ..program import optimizer_members, signals
from ..report import console, incident
from ..rerun import call_closure, rewind_manual as again
from . import functional, functional_updates, left_parameters, script_handled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..base.types import Alarm, Fingerprint, Parts, Tensor

NAME = "manual updates"
TRIES = 8  # engine calls after which a program that wrote no leaf is not asked about any more


class _Mark:
    """A leaf as it was when its gradient was asked for."""

    def __init__(self, leaf, with_copy):
        self.leaf, self.version, self.sum = leaf, leaf._version, _native.checksum(leaf)
        self.copy = leaf.detach().clone() if with_copy else None
        self.grad = leaf.grad.clone() if with_copy and leaf.grad is not None else None

    def is_counted(self):
        """Whether what wrote it was counted: writes through `.data` are not."""
        return self.leaf._version != self.version

    def is_written(self):
        return self.is_counted() or _native.checksum(self.leaf) != self.sum

    def put_back(self) -> None:
        """Uncounted: a graph that was built meanwhile continues to its gradients."""
        if _native.checksum(self.leaf) != self.sum:
            self.leaf.data.copy_(self.copy)


class _Bad:
    """A bad step: its loss is known, and whether it will be applied is not."""

    def __init__(self, step, roots, leaves, to_leaves):
        self.step, self.to_leaves, self.is_zeroed = step, to_leaves, False
        self.ledger: Any = None  # object_snapshot.Ledger, from the call on that was bad
        self.explained: Any = (
            None  # what is known of it before it is known whether it is applied (rerun/rewind_manual.py)
        )
        self.follows: Alarm | None = (
            None  # the alarm of the step before, with whose bad parameters its loss was computed
        )
        self.root = next(r for r in roots if isinstance(r, torch.Tensor) and not _native.is_finite(r)).detach().clone()
        self.marks = [_Mark(leaf, True) for leaf in leaves]
        self.expected: Fingerprint = {
            "losses": [_native.checksum(self.root)],
            "generator": _native.checksum(torch.get_rng_state()),
            "gradients": None,
        }


class _Row:
    """Bad steps one after another that the script did not apply; what is kept of the first."""

    def __init__(self, step, expected, explained):
        self.step, self.expected, self.explained, self.length = step, expected, explained, 0


class ByHand:
    def __init__(self, session: Parts):
        self.session = session
        self.is_proven = False  # leaves were written after an earlier engine call
        self.is_counted = False  # and their versions say so, also where what was added is zero
        self.is_seen = False  # or the operators that wrote them do
        self.marks: list[_Mark] | None = None  # of the last call, until it is proven
        self.shapes: list[Any] = []  # of the leaves that were written
        self.bad: Any = None  # _Bad: a step that is not settled
        # the alarm of a bad step whose writes have just been put back, after the next loss was computed with them
        self.behind: Alarm | None = None
        self.is_damaged = False  # a bad step was applied, as `warn` asks for
        self.row = _Row(-1, None, None)  # bad steps one after another that the script did not apply
        self.functional = functional.Functional(session.context, session.restart, session.unvetoed)
        self.rebound = functional_updates.Rebound(session.report, session.unvetoed, NAME)
        self.closure: Any = None  # of the finitude.step under way
        self.is_kept = False  # where each call of the engine returns is noted
        self.again: Any = None  # the window of the bad step runs a second time
        self.second: call_closure.SecondCall | None = None  # while a closure is called again

    # -- what the engine reports ----------------------------------------------------------------

    def begin(self, roots: Sequence[Any], inputs: Sequence[Any], to_leaves: bool) -> Any:
        """An outermost engine call begins. True: its end is of interest."""
        if functional.is_wrapped(roots):
            if self.second is None and self.session.target is not None:
                return self.session.target.hand_begins(functional.plain_all(roots), is_wrapped=True)
            if self.second is None:
                _native.first_step_over()
                self.functional.begin(roots, inputs)
            return False
        if self.second is not None:
            self.second.note(*self.session.in_place.explained(roots))
            return False
        if self.session.target is not None:
            self.session.target.hand_begins(roots)
            return False
        if self.again is not None:
            pending, self.again = self.again, None
            is_back = self.session.part(pending.end, roots, otherwise="failed")
            if is_back == "failed":
                self.session.part(pending.lost)
            elif is_back:
                return self._goes_on()
            self.bad.explained = pending.explained  # and what it has come to is another step
        self.behind = None
        self.settle()
        step = _native.hand_calls()
        bad = any(isinstance(r, torch.Tensor) and not _native.is_finite(r) for r in roots)
        wanted = bad or not self.is_proven or self.rebound.waiting
        leaves = [x for x in inputs if x.is_leaf] if inputs else optimizer_members.leaves_of(roots) if wanted else []
        self.rebound.compare(self.marks, leaves)
        if self.is_proven or step >= TRIES:
            _native.hand_watch(False)
        self.rebound.look(leaves)
        if not self.is_proven:
            self.marks = [_Mark(leaf, False) for leaf in leaves]
            _native.watch_writes(leaves)
        if step == 0:
            self.is_kept = self.session.in_place.first(roots, leaves)
        traced = self.session.in_place.of_first(roots) if self.is_kept else None
        if not bad or not leaves:
            return False
        self.bad = _Bad(step, roots, leaves, to_leaves)
        self.bad.ledger, self.bad.follows = Ledger(sys._getframe(), leaves), self.behind
        _native.hand_watch(True)  # the next call ends this step, whatever its loss
        _native.watch_writes(leaves)
        self.bad.is_zeroed = self.is_proven and self.session.config.on_alarm in ("skip", "rollback")
        self.bad.explained = traced
        if traced is None and (returned := self.session.part(self._rewind, roots, inputs, to_leaves)) is not None:
            return returned
        return self._goes_on()

    def _rewind(self, roots, inputs, to_leaves):
        """What the call is to return for its window to run again, in a tuple; None: it does not."""
        runs = self.session.second_runs.left
        if (
            not self.is_kept
            or self.closure
            or self.is_damaged
            or self.bad.follows is not None
            or not (runs.take("loss", False, False, False) or runs.take_in_place())
        ):
            return None
        pending = again.Again(
            self.session.in_place, self.session.capsules, self.session.report, self.bad, roots, inputs, to_leaves
        )
        self.bad.explained = pending.explained
        returned = pending.begin()
        self.again = pending if returned is not None else None
        return returned

    def _goes_on(self):
        """The first run does, with gradients of zero for what is to be skipped."""
        if self.session.config.on_alarm in ("skip", "rollback"):
            _native.hand_put_back()
        return self.bad.is_zeroed

    def lost(self) -> None:
        """The program has ended. If that was within a second run, its step is reported as it is."""
        if self.again is not None:
            self.again.lost()
            self.again = None

    def end(self, result: tuple[Any, ...] | None) -> tuple[Tensor | None, ...] | None:
        """That call returned: gradients of zero for a step that is to be skipped."""
        if self.session.target is not None:
            self.session.target.hand_ended()
            return None
        if self.bad.to_leaves:
            for mark in self.bad.marks:
                mark.leaf.grad = torch.zeros_like(mark.leaf) if mark.grad is None else mark.grad
            return None
        return tuple(None if g is None else torch.zeros_like(g) for g in result)  # type: ignore[union-attr]

    # -- the boundary of a step -----------------------------------------------------------------

    def settle(self, at_end: bool = False) -> None:
        """The engine call before and what followed it are over: was a bad step applied? May raise NonFiniteError.
        at_end: the program is over; what it wrote has been used, and is not put back."""
        seen = _native.writes_seen()
        if self.marks is not None:
            if any(m.is_written() for m in self.marks):
                self.is_proven, self.is_counted, self.is_seen = True, any(m.is_counted() for m in self.marks), seen
                self.shapes = [m.leaf.shape for m in self.marks if m.is_written()]
                self.marks = None
                _native.hand_watch(False)
            elif _native.hand_calls() >= TRIES:
                self.marks = None
                _native.hand_watch(False)
        bad, self.bad = self.bad, None
        if bad is None:
            return
        _native.hand_watch(False)
        # Zeros that are added through `.data` leave no mark, but an operator adds them. Where none was seen to write
        # the leaves before (numpy has), a program that has written them so far is taken to continue with.
        is_written = seen or any(m.is_written() for m in bad.marks)
        if not is_written and not self.is_proven:
            self.rebound.wait(bad)
            return
        if not is_written and (self.is_counted or self.is_seen or not bad.is_zeroed):
            _native.add_handled(1)
            if self._is_long_row(bad):
                return self._alarm(bad, False, at_end, self.row)
            self.session.report.advise("handled-by-script", bad.step, functional_updates.NEVER, *self._known(bad))
            _native.consume_losses(None)
            return
        try:
            self._alarm(bad, is_written, at_end)
        finally:
            _native.consume_losses(None)  # reported: it is not what an exception of the script's own is about later

    def _is_long_row(self, bad):
        """Is it as long as --max-skips with this one, and not reported yet?"""
        if bad.step != self.row.step + self.row.length:
            self.row = _Row(bad.step, bad.expected, bad.explained)
        self.row.length += 1
        return self.row.length == max(1, self.session.config.max_skips)

    def _known(self, bad: _Bad) -> tuple[Any, Any]:
        """(cause, births) of a step that is no alarm."""
        alarm = self.session.alarms.of_class(NAME, 0, bad.step, "loss", "loss")
        if bad.explained is None or not bad.explained.found or not incident.apply(alarm, bad.explained.found):
            return None, ()
        _native.tape_clear()
        return alarm["cause"], alarm["births"]

    def _alarm(self, bad: _Bad, is_written: bool, at_end: bool, row: _Row | None = None) -> None:
        """row: of steps that the script dropped, of which this is the last. The first of them is explained."""
        session = self.session
        if self.is_damaged:
            return  # what was applied knowingly is in every loss that follows
        if bad.follows is not None and not at_end:
            for mark in bad.marks:
                mark.put_back()
            bad.ledger.mend()
            bad.follows["text"] += (
                f"; step {bad.step}, computed with what this one had written before it was put back, was skipped too"
            )
            return
        stops = "stop" if session.config.on_alarm != "warn" else "warn"
        action = stops if row else session.policy.on_alarm(0, bad.step, False)
        one = row or bad
        alarm = session.alarms.of_class(NAME, 0, one.step, "loss", "loss")
        alarm["loss"] = number(float(bad.root)) if bad.root.numel() == 1 else None
        kind = "NaN" if bad.root.isnan().any() else "Inf"
        alarm["text"] = f"loss is {kind}; there is no optimizer, the program writes its parameters itself"
        if row:
            alarm["text"] = script_handled.row_text(row.length, "loss was not finite", row.step)
        elif not is_written:
            alarm["text"] += (
                ", where no operator is seen to (numpy?): whether it would have applied this step is not known"
            )
        is_ruined = not row and not all(_native.is_finite(m.copy) for m in bad.marks if m.copy is not None)
        if is_ruined:
            alarm["text"] += "; its parameters are not finite: " + (
                "an update before wrote them" if bad.step else "they were so before the first step"
            )
        applied = is_written and not bad.is_zeroed and (at_end or action == "warn")
        if applied and at_end:
            alarm["text"] += ", and ended after it had applied this step"
        if action != "warn" and not at_end and not row:
            for mark in bad.marks:
                mark.put_back()
            bad.ledger.mend()
            self.behind = alarm if is_written and not bad.is_zeroed else None
        session.report.begin(alarm)
        session.acting.begin(alarm, written=applied, action=action)
        signals.hold(signals.GIVES_WAY)
        runs = session.second_runs.left
        if one.explained is not None:
            if not session.part(self.session.in_place.apply, one.explained, alarm):
                session.part(session.restart.run, alarm, one.expected, hand=one.step)
        elif (runs.take("loss", False, False, False) or (self.closure and runs.take_in_place())) and not (
            self.closure and one is bad and session.part(self._call_again, alarm, bad)
        ):
            session.part(session.restart.run, alarm, one.expected, hand=one.step)
        alarm.pop("optimizer_ordinal", None)
        alarm["action"] = _native.action_text(action)
        if applied and action != "warn":
            alarm["action"] = "applied, the program had ended"
        if row and action == "warn":
            alarm["action"] = "reported, the script drops the step"
        elif action == "warn" or applied:
            alarm["weights"], self.is_damaged = "damaged", True
        if is_ruined:
            alarm["weights"] = "damaged"
        session.report.add_alarm(alarm)
        session.part(session.console.print_alarm, alarm)
        if action in ("stop", "raise"):
            raise NonFiniteError(console.message(self.session.report, alarm), report=alarm)

    def at_end(self) -> None:
        """A program without an optimizer ends by itself. May raise NonFiniteError, for what its last step did."""
        if self.session.target is None and not _native.counters()["optimizers"]:
            self.settle(at_end=True)

    def finish(self) -> bool:
        """What the report holds of it. True: what is known of losses without an optimizer has been reported."""
        if _native.counters()["optimizers"]:
            return False  # it came to have one
        self.functional.finish()
        try:
            self.settle(at_end=True)
        except NonFiniteError:
            pass  # there is nothing left to stop
        self.rebound.finish()
        proven = self.is_proven or self.functional.is_proven or self.rebound.is_proven
        if proven:
            self.session.report.note_steps_by_hand(_native.hand_calls())
            shapes = {*self.shapes, *self.functional.shapes, *self.rebound.shapes}
            self.session.part(left_parameters.look, self.session.report, shapes)
        return proven or self.rebound.is_reported

    # -- finitude.step --------------------------------------------------------------------------

    def run(self, closure: Callable[[], Any]) -> Any:
        """One step, given as a closure."""
        self.settle()
        _native.hand_take()
        self.closure = closure
        try:
            result = closure()
            self.settle()
        finally:
            self.closure = None
        return result

    def _call_again(self, alarm, bad):
        """Runs the closure a second time. True: it did the same, and the alarm is explained."""
        self.second = call_closure.SecondCall(self.closure, bad.marks, bad.expected, self.session.capsules)
        try:
            return self.second.run(alarm)
        finally:
            self.second = None
