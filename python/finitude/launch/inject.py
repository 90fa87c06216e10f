"""In a program that `finitude replay CAPSULE --with` started: the capsule's step is put in place, run under trace, and
judged.

Where the capsule holds the batch as a loader gave it, the first batch that fits is replaced, and weights, optimizer
state and generators go in with it. Else they go in where the first step (or the step before the capsule's) has
returned, which is where the recorded step began, and what the program then computes from has to be what the capsule was
computed from."""

from __future__ import annotations

import json
import os
import sys

import torch
from torch.utils.data import dataloader

from .. import _native
from ..base import compat, say
from ..base.plain_json import number, safe
from ..capsules import placing
from ..capsules.placing import Misfit
from ..capsules.start_check import is_sound
from ..program import anomaly, batch_source, optimizer_members, ranks, sinks as sinks_of, state_format, step_start_state
from ..session import step_calls
from . import sound_step
from .loaders import Loaders
from .recorded import Recorded
from .sound_step import alarm_in, birth_in, has_bad_loss, same_birth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from ..base.types import Injected, Optimizer, Session, Sink, Tensor, Verdict, Window

MAX_TAPE = 1 << 31
LEFT_OUT = "the program itself left the loss out"


class Injection:
    """What session.target is in such a process; an AnyTarget (base/types.py)."""

    def __init__(self, order: Injected):
        self.order = order
        why, about, data, self.inputs = _native.capsule_read(order["capsule"])
        if why:
            self.write("unreadable", why)
        self.about = json.loads(about)
        if not is_sound(self.about.get("start")):
            self.write("unreadable", "is no capsule: its start is not that of one")
        self.held = placing.Held(self.about["start"], data)
        self.start = self.about["start"]
        self.recorded = Recorded(self.held, self.inputs, is_first=not self.about["step"])
        self.rerun_by = alarm_in(self.about).get("rerun_by")
        self.mine = next(o for o in self.start["optimizers"] if o["failed"])
        self.loaders: Any = Loaders(self.held) if order["way"] == "batch" else None
        self.session: Session  # from `attach` on
        self.placed, self.put_what, self.notes = False, "", []
        self.optimizer: Any = None
        self.waits = False  # for the step that is under way to return
        self.given = 0
        self.begins_later = False  # than its own optimizer's step returned: where that of another one did
        self.recording = False

    # -- what Session and run ask of a target --------------------------------------------------

    def directory(self) -> str:
        return os.path.dirname(self.order["result"])

    def prepare(self) -> None:
        """Before the program begins."""
        anomaly.watch()

    def attach(self, session: Session) -> None:
        self.session = session

    def looks_for_overflow(self) -> bool:
        return self.order["written"]

    def arm(self) -> None:
        if type(self.order["threads"]) is int:
            torch.set_num_threads(self.order["threads"])
        if ranks.several():
            self.write("refused", "the program trains with several ranks; a step of one rank cannot be run alone in it")
        if self.order["way"] == "start":
            self._set_generators(self.start["generators"])
            _native.trace_start()
        first = max(0, self.about["step"] - 1) if self.order["way"] == "step" else 0
        _native.arm_at(self.mine["ordinal"], first, first, False)
        if self.loaders is not None:
            self._watch_loaders()

    def on_armed(self, optimizer: Optimizer | None) -> None:
        pass

    def hand_begins(self, roots: Sequence[Tensor], is_wrapped: bool = False) -> bool:
        self.write("refused", "the program has no optimizer")

    def was_made(self, ordinal: int) -> None:
        """An optimizer: the one of the capsule is found by its ordinal."""

    def hand_ended(self) -> None:
        """No such call is of interest."""

    def begins(self, optimizer: Optimizer, bad: Sink | None) -> Verdict:
        """What a step begins with that is not finite is what the capsule put there, or is put in place later."""

    def _is_mine(self, optimizer: Optimizer) -> bool:
        return (
            optimizer is self.optimizer if self.placed else _native.window(optimizer)["ordinal"] == self.mine["ordinal"]
        )

    def on_window(self, optimizer: Optimizer, dropped: Sequence[Any]) -> bool | None:
        """dropped: losses that the program looked at and gave to no backward."""
        if not self._is_mine(optimizer) or self.waits:
            return None
        if not self.placed and self.order["way"] == "start":
            self._is_there_already(optimizer)
        window = _native.window(optimizer)
        if (
            not self.placed and self.order["way"] == "step" and window["step"] + 1 < self.about["step"]
        ):  # bad, too, and not the one
            _native.consume_losses(optimizer)
            self.session.draws.note()
            return self.session.skipped.continue_without(optimizer, window["step"])
        if not self.placed:
            self._put_after(optimizer)
            return None
        if has_bad_loss(window) or sinks_of.of_optimizer(optimizer):
            self._failed(optimizer, sinks_of.of_optimizer(optimizer))
        self._check_inputs()
        is_dropped = bool(dropped) or self.session.bad_windows.checked() is not None
        self._check_backward(optimizer, window, is_dropped)
        self.waits = True  # what the optimizer makes of it is part of the step
        placing.rate(self.mine, optimizer)
        optimizer.register_step_post_hook(lambda *_: self._stepped(window, is_dropped))
        return None

    def on_left_bad(self, optimizer: Optimizer) -> None:
        """A step that is dropped is judged where it would have been taken."""

    def row_dropped(self) -> None:
        """So are several in a row."""

    def row_raised(self, error: BaseException) -> None:
        """And those of which backward raised."""

    def on_searched(self, optimizer: Optimizer, sinks: Sequence[Sink], before: Any) -> None:
        if not self.placed and self.order["way"] == "start" and self._is_mine(optimizer):
            self._is_there_already(optimizer, before)
        if self.placed and self._is_mine(optimizer):
            self._failed(optimizer, sinks)

    def on_searched_well(self, optimizer: Optimizer, window: Window, before: Any) -> None:
        if not self._is_mine(optimizer):
            return
        if not self.placed and self.order["way"] == "start":
            self._is_there_already(optimizer, before)
        if self.placed:
            self._check_inputs()
            dropped = self.session.bad_windows.checked() is not None
            self._check_backward(optimizer, window, dropped)
            self._stepped(window, dropped)
        if self.order["way"] == "step" and window["step"] + 1 < self.about["step"]:
            return
        self._put(optimizer)
        self._set_generators(self.start["generators"])

    def on_scaler_skip(self, optimizer: Optimizer, beyond: bool) -> None:
        if self.placed and self._is_mine(optimizer):
            self._failed(optimizer, sinks_of.of_optimizer(optimizer), "the GradScaler left the step out")

    def on_written(self, optimizer: Optimizer, sinks: Sequence[Sink]) -> None:
        if self.placed and self._is_mine(optimizer):
            self._failed(optimizer, sinks, "written by the optimizer")

    def program_ended(self, error: BaseException | None) -> NoReturn:
        session = self.session
        if self.order["way"] == "start" and not self.placed and (optimizer := self._optimizer_that_fits()) is not None:
            self._is_there_already(optimizer)
        if self.placed:
            found = (
                session.bad_windows.pending()
                or session.bad_windows.derivative(error)
                or session.bad_windows.in_frames(error)
            )
            if found is not None:
                self._failed(
                    found[0], found[2], f"the program raised {type(error).__name__}" if error is not None else ""
                )
            if session.bad_windows.lost() is not None or session.bad_windows.checked() is not None:
                self._failed(None, [])
            why = f"the program raised {type(error).__name__}: {error}" if error is not None else "the program ended"
            self.write("lost", f"{why} before the optimizer's step, and nothing was found that is not finite")
        why = f"the program raised {type(error).__name__} ({error})" if error is not None else "the program ended"
        batch = (
            f"; of its loaders none gives such a batch: {self.loaders.why}"
            if self.loaders is not None and self.loaders.why
            else ""
        )
        self.write("not reached", f"{why} before the step could be put in place{batch}")

    # -- putting the step in place -------------------------------------------------------------

    def _watch_loaders(self):
        original = dataloader._BaseDataLoaderIter.__dict__["__next__"]

        def __next__(iterator):
            return self._on_batch(iterator, original.__get__(iterator)())

        dataloader._BaseDataLoaderIter.__next__ = __next__  # type: ignore[method-assign]

    def _on_batch(self, iterator, batch):
        if self.waits or not torch.is_grad_enabled():
            return batch
        found = self.loaders.give(iterator, batch)
        if found is None:
            return batch
        if (
            self.placed
            and self.given >= len(self.start["batches"])
            and (_native.pending_bad_losses() or self.session.bad_windows.checked())
        ):
            self._failed(self.optimizer, [], "the program itself left the step out")
        whole, generators = found
        if not self.placed:
            optimizer = self._optimizer_that_fits()
            if optimizer is None:
                return batch  # made later, or refused when it steps
            self._put(optimizer)
        self.given += 1
        step_calls.name_batch([whole])
        self._set_generators(generators)
        return whole

    def _optimizer_that_fits(self):
        fits = [o for o in sinks_of.watched_optimizers() if not self.recorded.misfits(self.mine, o)[0]]
        return fits[0] if fits else None

    def _refuse(self, why):
        self.notes = [
            *getattr(self, "notes", ()),
            "weights are put in place by name and shape: leave the model as recorded for this trial, "
            "or capture the step of the changed one",
        ]
        self.write("refused", "; ".join(why))

    def _is_there_already(self, optimizer, before=None):
        """The first step of a program: what it began with is what it makes itself. before: its parameters then."""
        why, parameters, _ = self.recorded.misfits(self.mine, optimizer)
        if why:
            self._refuse(why)
        began = parameters if before is None else dict(zip(parameters, before))
        others = [
            n
            for n, k in self.mine["parameters"].items()
            if k is not None and _native.checksum(began[n].detach()) != _native.checksum(self.held.tensor(k))
        ]
        if others:
            self.write("other batch", f"the program begins with other values of {placing._names(others)} than recorded")
        self.optimizer, self.placed, self.put_what = (
            optimizer,
            True,
            "the generators; the rest the program made itself, as recorded",
        )

    def _put_after(self, optimizer):
        """Where this step, which is not the one, has returned."""
        why, _, _ = self.recorded.misfits(self.mine, optimizer)
        if why:
            self._refuse(why)
        self.waits = True
        step = _native.window(optimizer)["step"]
        _native.arm_at(self.mine["ordinal"], step + 1, step + 1, False)

        def put(*_):
            if not self.placed:  # the hook stays: torch iterates over them while it is called
                self.waits = False
                self._put(optimizer, others_step_first=True)
                if not self.begins_later:
                    self._set_generators(self.start["generators"])

        optimizer.register_step_post_hook(put)

    def _put(self, optimizer: Optimizer, others_step_first: bool = False) -> None:
        why, parameters, buffers = self.recorded.misfits(self.mine, optimizer)
        if why:
            self._refuse(why)
        try:
            self._put_one(self.mine, optimizer, parameters, buffers)
            for record in self.start["optimizers"]:
                if record is not self.mine:
                    self._put_other(record, optimizer, others_step_first)
        except Misfit as e:
            self.write("refused", str(e))
        placing.rate(self.mine, optimizer)
        scaler = self.start["scaler"]
        if scaler is not None:
            for found in optimizer_members.instances(torch.amp.GradScaler):
                placing.scale(scaler, found)
        count = len(self.start["batches"])
        batches = f", {count} batch{'es' * (count != 1)}" if self.loaders is not None else ""
        self.put_what = (
            f"{len(parameters)} parameters, {len(self.mine['buffers'])} buffers, optimizer state of "
            f"{len(self.mine['state'])}, generators{batches}"
        )
        self.optimizer, self.placed = optimizer, True
        if compat.run_eagerly() is None and "torch._dynamo" in sys.modules:
            torch.compiler.set_stance("force_eager")
        if self.order["way"] != "batch":
            self.recording = True
            _native.tape_start(MAX_TAPE)
            if (
                self.rerun_by == "closure"
            ):  # what the program computes before its call of `step` is no part of the recorded one
                optimizer.register_step_pre_hook(lambda *_: self._record_anew())
        _native.trace_clear()
        _native.trace_start()

    def _record_anew(self):
        if self.recording:
            _native.tape_stop()
            _native.tape_take()
            _native.tape_start(MAX_TAPE)

    def _put_one(self, record, optimizer, parameters, buffers):
        note = self.recorded.put(record, optimizer, parameters, buffers)
        self.notes += [note] * bool(note and note not in self.notes)

    def _put_other(self, record, optimizer, steps_first):
        """steps_first: before the step it steps once more, as far as it does so at all. Where the capsule has only what
        that step leaves, it is until then the program's own, and read by a graph that its backward still needs."""
        for other in sinks_of.watched_optimizers():
            why, parameters, buffers = self.recorded.misfits(record, other)
            if other is not optimizer and not why:
                if (began := self.recorded.began(record)) is not None:  # its steps are a part of the recorded one
                    return self._put_one(began, other, parameters, buffers)
                if steps_first and (record["state"] or _native.window(other)["step"] > 0):
                    # Of a step that is on the tape itself, what it began with is the program's own, too, and has to
                    # come up.
                    self.begins_later = (
                        self.begins_later or self.rerun_by in ("jump", "tape") and record.get("stepped", 0) < 1
                    )
                    other.register_step_post_hook(lambda *_: self._other_stepped(record, other, parameters, buffers))
                    return
                return self._put_one(record, other, parameters, buffers)
        self.notes.append(
            f"a second {record['class']} of the capsule fits no other optimizer here; its parameters "
            "are the program's own"
        )

    def _other_stepped(self, record, other, parameters, buffers):
        if self.waits:
            return
        try:
            self._put_one(record, other, parameters, buffers)
        except Misfit as e:
            self.write("refused", str(e))
        if self.begins_later:  # until then what it computes is the program's own, random numbers among it
            self._record_anew()
            self._set_generators(self.start["generators"])

    def _set_generators(self, name):
        try:
            states = self.held.generators(name)
        except Misfit as e:
            self.write("refused", str(e))
        if states is not None:
            states.restore()

    # -- the verdict ----------------------------------------------------------------------------

    def _check_inputs(self):
        """Where the program made its batch itself: was it computed from what the capsule was computed from?"""
        if not self.recording:
            return
        self.recording = False
        _native.tape_stop()
        there = [data for _, _, data in _native.tape_inputs(_native.tape_take())]
        # What a loader made in the step is on the tape as it was put together.
        there += [
            state_format.content(t) for event in _native.window_batches() for t in step_start_state.tensors_of(event[1])
        ]
        missing = sound_step.missing_inputs(self.inputs, there, set(self.start.get("unwritten", ())))
        if missing:
            which = (
                "its loader gave another batch there"
                if self.start["batches"]
                else "it makes its batch itself, and made another one"
            )
            self.write(
                "other batch",
                f"of what the step was computed from, {placing._names(missing)} did not come up in "
                f"the program: {which}",
            )

    def _check_backward(self, optimizer, window, dropped):
        why, notes = sound_step.without_backward(self.about, self.mine, optimizer, window)
        if why:
            self._failed(
                optimizer,
                [],
                LEFT_OUT if dropped else "",
                otherwise=f"the program reached the optimizer's step, but {why}, and nothing was "
                "found that is not finite",
            )
        self.notes += notes

    def _stepped(self, window: Window, dropped: bool = False) -> None:
        optimizer = self.optimizer
        params = optimizer_members.parameters(optimizer)
        if sinks := sound_step.bad_results(optimizer):
            self._failed(optimizer, sinks, "written by the optimizer")
        loss = number(float(window["losses"][-1]["value"])) if window["losses"] else None
        if dropped:
            self._failed(optimizer, [], LEFT_OUT, only_if_same=True)
        if window["laundered"]:
            self._failed(optimizer, [], "the program itself replaced gradients that are not finite", only_if_same=True)
        largest = max(
            (s["absmax"] for p in params if p.grad is not None and (s := _native.statistics(p.grad))), default=0.0
        )
        self.write(
            "fixed",
            "loss and gradients are finite, and so is what the optimizer wrote",
            loss=loss,
            grad_absmax=number(largest),
        )

    def _failed(
        self, optimizer: Any, sinks: Any, text: str = "", otherwise: str = "", only_if_same: bool = False
    ) -> None:
        """otherwise: what is said where no birth is found. only_if_same: returns where it is another one than recorded:
        a value that the program looks at need not be that of its loss."""
        if self.recording:
            self._check_inputs()
        found = self.session.analysis.findings(optimizer, sinks)
        if birth := found["births"][0] if found.get("births") else None:
            batch_source.name_loop_line(birth)
        before = birth_in(self.about)
        if only_if_same and not same_birth(before, birth):
            self.notes.append(text + (f" ({birth['op'] or birth['phase']})" if birth is not None else ""))
            return
        if birth is None and otherwise:
            self.write("lost", otherwise)
        losses = _native.window(optimizer)["losses"] if optimizer is not None else []
        self.write(
            "not fixed",
            text,
            birth=birth,
            same_birth=same_birth(before, birth),
            cause=found.get("cause"),
            fix=found.get("fix"),
            loss=number(float(losses[-1]["value"])) if losses else None,
        )

    def failed(self) -> NoReturn:
        self.write("lost", "an internal failure ended it")

    def write(self, verdict: str, text: str, **more: Any) -> NoReturn:
        """The result, and the end of this process: nothing of the user's code runs after it."""
        temporary = self.order["result"] + f".{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump(
                safe(
                    {
                        "verdict": verdict,
                        "text": text,
                        "put": getattr(self, "put_what", ""),
                        "notes": getattr(self, "notes", []),
                        **more,
                    }
                ),
                f,
            )
        os.replace(temporary, self.order["result"])
        say.flush()
        os._exit(0)
