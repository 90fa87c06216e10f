"""What a process is that was started to run a step again: it comes to that step, records it and writes down what it
found."""

from __future__ import annotations

import json
import os
import sys
import time

import torch

from .. import _native
from ..effects.object_snapshot import Ledger
from ..errors import NonFiniteError
from ..program import (
    anomaly,
    batch_source,
    checkpoint_origin,
    frames_at_raise,
    optimizer_members,
    sinks as sinks_of,
    step_start_state,
)
from ..report import impossible_state, incident, value_lines
from . import device_streams, first_values, launch_command, overlay_fs, second_outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from ..base.types import Alarm, Findings, Optimizer, Order, Session, Sink, Tensor, Verdict, Window

ENVIRONMENT = "FINITUDE_RESTART"  # of that process: the path of what it is to do


class Target:
    """In the second process: what it was sent to explain."""

    def __init__(self, order: Order):
        self.order = order
        self.finished = self.at_end = self.has_begun = False
        # What the program's objects held as the step began, where a skipped one may have left bad values there
        self._ledger: Ledger | None = None
        self.began = time.monotonic()
        self.session: Session  # from `attach` on

    @classmethod
    def from_environment(cls) -> Target | None:
        path = os.environ.pop(ENVIRONMENT, None)
        if not path:
            return None
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f))

    def attach(self, session: Session) -> None:
        """The session of this process has been made."""
        self.session = session

    def prepare(self) -> None:
        """Before the program begins."""
        if self.order.get("guard"):
            _native.guard_memory()
        device_streams.watch()
        checkpoint_origin.watch(impossible_state.note_loaded)
        launch_command.restore_seeds(self.order["seeds"])
        anomaly.watch()

    def looks_for_overflow(self) -> bool:
        """Is optimizer state that is Inf, and nothing worse, what it was sent for, or may it be?"""
        return self.order["written"] or self.order["overflowed"]

    def directory(self) -> str | None:
        """Where whoever waits for this process sees how far it is. None: all ranks run again, and share one."""
        return None if self.order.get("ranks") else os.path.dirname(self.order["result"])

    def arm(self) -> None:
        """From the start for the first step, else when the step before is applied. From a checkpoint on steps count
        again: each is traced, and the first bad one is it."""
        torch.set_num_threads(self.order["threads"])
        overlay_fs.hold_the_rest()
        self.limit = self.session.capsules.limit()
        if self.order.get("resumed"):
            _native.trace_start()
            _native.set_trace_level(True)
            return
        if (hand := self.order.get("hand")) is not None:
            if hand <= 1:
                _native.trace_start()
            if hand == 0:
                self._record_by_hand()
            return
        if self.order["first"] == 0:
            _native.trace_start()
            self.on_armed()
        if self.order.get("capsule") and self.order["first"] == self.order["step"] and self.order.get("skips", 0) <= 1:
            (_native.tape_start if self.order["first"] == 0 else _native.tape_when_armed)(self.limit)
        if self.order["first"] < self.order["step"]:
            _native.set_trace_level(True)  # a healthy step's trace is not kept
        if self.order.get("made") is None:
            self._arm_at(self.order["ordinal"])
        else:
            self.order["ordinal"] = -1  # not made yet

    def _arm_at(self, ordinal):
        _native.arm_at(ordinal, self.order["first"], self.order["step"], self.order["written"])

    def was_made(self, ordinal: int) -> None:
        """An optimizer, by the thread that calls."""
        if self.order["ordinal"] == -1 and self.session.makers.is_same(ordinal, self.order["made"]):
            self.order["ordinal"] = ordinal
            self._arm_at(ordinal)

    def on_armed(self, optimizer: Optimizer | None = None) -> None:
        """The traced step begins: code that was compiled in the first process runs op by op from here. optimizer: once
        that has written, of whose step before the pre-hook runs; what it read and wrote is no part of the step, and no
        start of it."""
        step_start_state.here()
        if optimizer is not None and self.order.get("capsule"):
            optimizer.register_step_post_hook(self._previous_step_is_over)
        if self.order["compiled"]:
            torch.compiler.set_stance("force_eager")
        value_lines.begin(in_place=False)

    def _previous_step_is_over(self, *_):
        first, self.has_begun = not self.has_begun, True  # the hook stays: torch iterates over them while it is called
        if first and _native.tape_on():
            _native.trace_clear()
            _native.trace_start()
            _native.tape_clear()
            _native.tape_start(self.limit)
            step_start_state.here()

    def hand_begins(self, roots: Sequence[Tensor], is_wrapped: bool = False) -> bool:
        """An engine call of a program without an optimizer. True: its end is of interest."""
        wanted = self.order.get("hand")
        if wanted is None:
            return False
        session = self.session
        call, resumed = _native.hand_calls(), self.order.get("resumed")
        if resumed and all(not isinstance(r, torch.Tensor) or _native.is_finite(r) for r in roots):
            _native.trace_clear()
        elif call + 2 == wanted and not resumed:
            _native.trace_start()  # what spoils the parameters may be a derivative of the call before
        elif call + 1 == wanted and not resumed:
            self._record_by_hand(later=is_wrapped)
            return is_wrapped
        elif call == wanted or resumed:
            overlay_fs.let_go()
            sums, found = session.in_place.explained(roots)
            lost: list[Sink] = [
                ("loss", "loss", r)
                for r in roots
                if is_wrapped and isinstance(r, torch.Tensor) and not _native.is_finite(r)
            ]
            session.capsules.stop(None, sinks=lost, raised=bool(lost))  # others are reported as backward begins
            same = (
                sums == self.order["expected"]["losses"]
                and _native.checksum(torch.get_rng_state()) == self.order["expected"]["generator"]
            )
            self._write(second_outcome.of(self.order, same, bool(sums)), found)
        return False

    def hand_ended(self) -> None:
        """What torch.func computes in that call is of tensors that live in it alone: a tape begins behind it."""
        if self.order.get("capsule"):
            _native.tape_start(self.limit)
        step_start_state.here()

    def _record_by_hand(self, later=False):
        if self.order.get("capsule") and not later:
            _native.tape_start(self.limit)
        self.on_armed()

    def _is_mine(self, optimizer: Optimizer | None, after: int = 0) -> bool:
        window = _native.window(optimizer)
        if self.order.get("skips"):
            return False  # no step is
        if self.order.get("resumed"):
            return (
                window["ordinal"] == self.order["ordinal"]
                and after == 0
                and _native.window_verdict(optimizer, False)["kind"] == "alarm"
            )
        return window["ordinal"] == self.order["ordinal"] and window["step"] - after == self.order["step"]

    def begins(self, optimizer: Optimizer, bad: Sink | None) -> Verdict:
        """The first step of that optimizer comes. bad: (kind, name, tensor) of what it begins with that is not finite,
        or None."""
        session = self.session
        if self.order.get("memory") and self._is_mine(optimizer):
            unwritten = first_values.unwritten(session.analysis, optimizer, self.order)
            self._write(second_outcome.of_other_memory(self.order), unwritten)
        if (start := self.order["start"]) and self._is_mine(optimizer):
            if (found := first_values.compared(session.analysis, optimizer, self.order)) is not None:
                self._write(second_outcome.of_other_memory(self.order), found)
            if bad is None or list(bad[:2]) != start[:2]:
                self._write(
                    second_outcome.of(self.order, False, False), {"births": []}
                )  # what it would fail at later is another matter
        if bad is None:
            return None
        return self.finish(optimizer, [bad]) if self._is_mine(optimizer) else self.left_out(optimizer) is not None

    def left_out(self, optimizer: Optimizer) -> list[Any] | None:
        """What became of that window in the first run, if it was bad, here or on another rank, and skipped: it is so
        again, or another program would follow."""
        if self.order.get("resumed"):
            return None
        window = _native.window(optimizer)
        at = [window["ordinal"], window["step"], self.session.scaling.skipped[window["ordinal"]]]
        return next((d for d in self.order.get("decided", ()) if [*d[:2], *d[3:]] == at), None)

    def _arm_behind(self, step):
        """The step to be recorded follows one that is skipped, so that no step is applied before it."""
        if step[0] != self.order["ordinal"] or step[1] + 1 != self.order["first"] or _native.trace_on():
            return
        _native.trace_start()
        if self.order.get("capsule") and self.order["first"] == self.order["step"]:
            _native.tape_start(self.limit)
        self.on_armed()
        watched = sinks_of.watched_optimizers()
        self._ledger = Ledger(sys._getframe(), [p for o in watched for p in optimizer_members.parameters(o)], watched)

    def on_window(self, optimizer: Optimizer, dropped: Sequence[Any]) -> bool | None:
        session = self.session
        if (step := self.left_out(optimizer)) is not None:
            _native.consume_losses(optimizer)
            if step[2]:
                session.holds.release()
                _native.put_back(batch_source.iterates_data)
                self._arm_behind(step)
                raise NonFiniteError(step[2])
            if (scaler := optimizer_members.scaler_of(optimizer)) is not None:
                session.scaling.meet(scaler)
            session.draws.note()
            left_out = session.skipped.continue_without(optimizer, step[1])
            self._arm_behind(step)
            return left_out
        if self.order.get("witness"):
            if self._is_mine(optimizer):
                self._look_at_given(optimizer)
            return None
        if not self._is_mine(optimizer) or self.order["written"]:
            if self._is_mine(optimizer, after=1) and self.order["written"]:
                self.finish(optimizer, [])
            return None
        window = _native.window(optimizer)
        looks_back = self.order["first"] < self.order["step"] or self.order.get("damaged")
        earlier = sinks_of.bad_state(optimizer, session.allowed.tensors) if looks_back else []
        sinks = earlier or sinks_of.of_optimizer(optimizer)
        # A loss that the script has dropped is settled by what follows, as it was in the first run.
        if not sinks and not any(loss["bad"] for loss in window["losses"]) and self._is_looked_at(window["step"]):
            return None
        self.finish(optimizer, sinks)

    def _look_at_given(self, optimizer: Optimizer | None) -> NoReturn:
        """Another rank received what was not finite: did this one give it, or make one for itself?"""
        sinks = sinks_of.of_optimizer(optimizer) if optimizer is not None else []
        found = self.session.analysis.findings(optimizer, sinks, given_away=not sinks)
        outcome = second_outcome.of_given_away(self.order, bool(found["births"]), not sinks)
        self._write(outcome, found, has_capsule=False)

    def _is_looked_at(self, step: int) -> bool:
        """Did the script look at a bad loss of this step and not give it to backward?"""
        return any((w["ordinal"], w["step"]) == (self.order["ordinal"], step) for w in _native.waiting_checks())

    def on_left_bad(self, optimizer: Optimizer) -> None:
        """A backward has left gradients that are not finite, which the script is going to drop."""
        if self.order.get("dropped") and self._is_mine(optimizer):
            self.finish(optimizer, sinks_of.of_optimizer(optimizer))

    def on_searched(self, optimizer: Optimizer, sinks: Sequence[Sink], before: Any) -> None:
        if self._is_mine(optimizer):
            self.finish(optimizer, sinks)

    def on_written(self, optimizer: Optimizer, sinks: Sequence[Sink]) -> None:
        window = _native.window(optimizer)
        step = window["step"] - 1
        if window["ordinal"] != self.order["ordinal"]:
            return
        if self.order.get("resumed"):
            self.finish(optimizer, sinks, written_at=self.order["step"])
        if step == self.order["step"] and self.order["written"] or self.order["first"] <= step < self.order["step"]:
            self.finish(optimizer, sinks, written_at=step)

    def on_searched_well(self, optimizer: Optimizer, window: Window, before: Any) -> None:
        """A search along a line came to something finite."""

    def on_scaler_skip(self, optimizer: Optimizer, beyond: bool) -> None:
        """A GradScaler left a step out, `beyond` what it may. Of several in a row each is a window of its own."""
        if not self.order.get("skips") or _native.window(optimizer)["ordinal"] != self.order["ordinal"]:
            return
        left = self.order["skips"] - self.session.scaling.skipped[self.order["ordinal"]]
        if beyond if self.order.get("resumed") else left == 0:
            self.finish(optimizer, sinks_of.of_optimizer(optimizer))
        _native.trace_clear()
        if left == 1 and self.order.get("capsule"):
            _native.tape_start(self.session.capsules.limit())

    def failed(self) -> NoReturn:
        """An internal failure: this process has nothing to report."""
        os._exit(3)

    def program_ended(self, error: BaseException | None) -> NoReturn:
        session = self.session
        if not self.finished and self.order.get("witness") and _native.trace_on():
            self._look_at_given(self._mine())
        if not self.finished:
            found = (
                session.bad_windows.pending()
                or session.bad_windows.derivative(error)
                or session.bad_windows.in_frames(error)
            )
            if found is not None:
                self.finish(found[0], found[2], raised=True)
            if session.bad_windows.lost() is not None:
                self.finish(None, [])
            if session.bad_windows.checked() is not None:
                if looked := sinks_of.looked_at():
                    session.capsules.stop(self._mine(), sinks=sinks_of.as_looked_at(looked), raised=True)
                else:
                    self.order["capsule"] = None  # nothing that a replay could come to
                # Where the first run knew the loss by its exception alone, the optimizer is the one that it named.
                named = self.order["expected"].get("gradients") is not None
                self.finish(self._mine() if named else None, [], raised=error is not None)
            if error is None and self.order["first"] < self.order["step"]:
                self._look_a_last_time()
            if error is not None and frames_at_raise.is_about_values(error):
                self.order["capsule"] = None  # no tensor is left that a replay could come to
                session.second_run.note_without_tensor()
                self.finish(self._mine(), [], raised=True)
        os._exit(3)

    def row_dropped(self) -> None:
        """The script has dropped as many steps in a row as --max-skips. Where the first run reported that it ended
        there."""
        waits = _native.waiting_checks()[0]
        if (waits["ordinal"], waits["step"]) == (self.order["ordinal"], self.order["step"]):
            self.program_ended(None)

    def row_raised(self, error: BaseException) -> None:
        """The same of backward passes that raised."""
        optimizer = self._mine()
        if optimizer is not None and _native.window(optimizer)["step"] == self.order["step"]:
            self.program_ended(error)

    def _mine(self):
        return next(
            (o for o in sinks_of.watched_optimizers() if _native.window(o)["ordinal"] == self.order["ordinal"]), None
        )

    def _look_a_last_time(self) -> None:
        """What was found bad as the program ended may have been written after the last step."""
        for optimizer in sinks_of.watched_optimizers():
            if self._is_mine(optimizer) and (found := sinks_of.bad_state(optimizer, self.session.allowed.tensors)):
                self.at_end = True
                self.finish(optimizer, found)

    def finish(
        self,
        optimizer: Optimizer | None,
        sinks: Sequence[Sink],
        written_at: int | None = None,
        raised: bool = False,
    ) -> NoReturn:
        """Analyses, writes the result and ends this process without running any more of the user's code. raised: by the
        script, before a loss among the sinks came to backward."""
        session = self.session
        self.finished = True
        overlay_fs.let_go()
        session.capsules.stop(optimizer, parameters=written_at is not None, sinks=sinks, raised=raised)
        expected = self.order["expected"]
        if (late := expected.get("late")) is not None:
            verified = optimizer is not None and incident.is_as_reported(optimizer, late)
        else:
            now = incident.fingerprint(optimizer, raised=sinks if raised else ())
            if "raised" not in now and "raised" in expected:
                expected["raised"] = None  # it was found in another way, or not at all
            verified = written_at is not None or incident.is_as_expected(now, expected)
        if self._ledger is not None:
            names = {id(b): name for name, b in optimizer_members.buffers(optimizer)} if optimizer is not None else {}
            session.known.carry(self._ledger.left(names))
        other = incident.other_values(self.order["named"]) if verified and not self.order["compiled"] else []
        looks_back = bool(self.order["swallowed"] or self.order["overflowed"])
        found = session.analysis.findings(optimizer, sinks, swallowed=self.order["swallowed"], was_bad=not looks_back)
        by_chance, guarded = found.pop("by_chance", False), found.pop("guarded", False)
        is_other = not verified and not by_chance and not guarded and written_at is None
        elsewhere = is_other and bool(found["births"]) and incident.is_elsewhere(self.order, optimizer, sinks)
        by_memory = elsewhere and found["cause"]["class"] == "uninitialised-memory"
        if elsewhere and not by_memory:
            found = {"births": []}
        if optimizer is not None:
            checkpoint_origin.add_to(found, optimizer)
        failed_again = bool(found["births"]) and not by_chance and guarded != "finite"
        outcome = second_outcome.of(self.order, verified, failed_again, elsewhere, written_at, other, by_memory)
        self._write(outcome, found, written_at, has_capsule=not elsewhere)

    def _write(
        self, outcome: second_outcome.Outcome, found: Findings, written_at: int | None = None, has_capsule: bool = True
    ) -> NoReturn:
        """The result, and the end of this process."""
        self.finished = True
        overlay_fs.let_go()
        if found["births"]:
            batch_source.name_loop_line(found["births"][0])
        not_watched = self.session.report.not_watched
        before = not_watched[:]
        # Of a step that is looked at again for an advisory alone and has nothing to it, nothing is kept.
        nothing = outcome.verdict == "transient" or self.order.get("swallowed") and not found["births"]
        written = None if nothing or not has_capsule else self._write_capsule(found, outcome)
        temporary = self.order["result"] + ".tmp"
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump(
                {
                    "findings": found,
                    "rerun": outcome.verdict,
                    "verified": outcome.same_bits,
                    "text": outcome.text,
                    "step": self.order["step"] if written_at is None else written_at,
                    "capsule": written,
                    "found_in": None if self.at_end else "window" if written_at is None else "written",
                    "seconds": time.monotonic() - self.began,
                    "no_capsule": next((w for w in not_watched if w not in before), ""),
                },
                f,
            )
        os.replace(temporary, self.order["result"])
        os._exit(0)

    def _write_capsule(self, found, outcome):
        folder = self.order.get("capsule")
        if not folder or not os.path.isdir(os.path.dirname(folder)):
            _native.tape_clear()
            return None
        if self.order["first"] < self.order["step"]:  # none was on the tape
            return None
        alarm: Alarm = {
            **self.order["alarm"],
            "rerun": outcome.verdict,
            "rerun_by": "restart",
            "rerun_verified": outcome.same_bits,
            "rerun_text": outcome.text,
        }
        incident.apply(alarm, found)
        return self.session.capsules.write(alarm, folder)
