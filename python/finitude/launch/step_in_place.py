"""Puts a capsule's step in place in a program: parameters, buffers, optimizer state and generators as they were where
the recorded step began."""

from __future__ import annotations

import sys

import torch

from .. import _native
from ..base import compat
from ..capsules import placing
from ..capsules.placing import Misfit
from ..program import optimizer_members, sinks as sinks_of
from .recorded import Recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from ..base.types import Optimizer, Tensor

MAX_TAPE = 1 << 31


class StepInPlace:
    """optimizer: of the program, which takes the step; None before it is in place (is_put). waits: for the step under
    way to return. is_recorded: a tape is kept of what the step reads. put_what, notes: for the result."""

    def __init__(
        self,
        start: dict[str, Any],
        held: placing.Held,
        inputs: Sequence[tuple[str, str, bytes]],
        is_first: bool,
        way: str,
        rerun_by: str | None,
        write: Callable[..., NoReturn],
        is_ready: Callable[[], None],
    ):
        """start: of the capsule; held: its tensors; inputs: what the step read; is_first: it was the program's first.
        way: "start", "step" or "batch" (Injected of base/types.py). write: ends the process with a verdict. is_ready:
        called where the step has been put in place."""
        self._capsule_start, self._held, self._way, self._rerun_by = start, held, way, rerun_by
        self._write, self._is_ready = write, is_ready
        self._recorded = Recorded(held, inputs, is_first)
        self.mine = next(o for o in start["optimizers"] if o["failed"])
        self.optimizer: Any = None
        self.is_put, self.waits, self.is_recorded = False, False, False
        self.put_what: str = ""
        self.notes: list[str] = []
        self._begins_later = False  # than its own optimizer's step returned: where that of another one did

    def is_of_capsule(self, optimizer: Optimizer) -> bool:
        """Is it the optimizer of the capsule's step?"""
        return (
            optimizer is self.optimizer if self.is_put else _native.window(optimizer)["ordinal"] == self.mine["ordinal"]
        )

    def fitting_optimizer(self) -> Any:
        """The first watched one that the capsule fits, or None."""
        fits = [o for o in sinks_of.watched_optimizers() if not self._recorded.misfits(self.mine, o)[0]]
        return fits[0] if fits else None

    def _refuse(self, why):
        self.notes.append(
            "weights are put in place by name and shape: leave the model as recorded for this trial, "
            "or capture the step of the changed one"
        )
        self._write("refused", "; ".join(why))

    def is_there_already(self, optimizer: Optimizer, before: Sequence[Tensor] | None = None) -> None:
        """The first step of a program: what it began with is what it makes itself. before: its parameters then."""
        why, parameters, _ = self._recorded.misfits(self.mine, optimizer)
        if why:
            self._refuse(why)
        began = parameters if before is None else dict(zip(parameters, before))
        others = [
            n
            for n, k in self.mine["parameters"].items()
            if k is not None and _native.checksum(began[n].detach()) != _native.checksum(self._held.tensor(k))
        ]
        if others:
            self._write(
                "other batch", f"the program begins with other values of {placing._names(others)} than recorded"
            )
        self.optimizer, self.is_put, self.put_what = (
            optimizer,
            True,
            "the generators; the rest the program made itself, as recorded",
        )

    def put_after(self, optimizer: Optimizer) -> None:
        """Where this step, which is not the one, has returned."""
        why, _, _ = self._recorded.misfits(self.mine, optimizer)
        if why:
            self._refuse(why)
        self.waits = True
        step = _native.window(optimizer)["step"]
        _native.arm_at(self.mine["ordinal"], step + 1, step + 1, False)

        def returned(*_):
            if not self.is_put:  # the hook stays: torch iterates over them while it is called
                self.waits = False
                self.put(optimizer, others_step_first=True)
                if not self._begins_later:
                    self.set_generators(self._capsule_start["generators"])

        optimizer.register_step_post_hook(returned)

    def put(self, optimizer: Optimizer, others_step_first: bool = False) -> None:
        why, parameters, buffers = self._recorded.misfits(self.mine, optimizer)
        if why:
            self._refuse(why)
        try:
            self._put_one(self.mine, optimizer, parameters, buffers)
            for record in self._capsule_start["optimizers"]:
                if record is not self.mine:
                    self._put_other(record, optimizer, others_step_first)
        except Misfit as e:
            self._write("refused", str(e))
        placing.rate(self.mine, optimizer)
        scaler = self._capsule_start["scaler"]
        if scaler is not None:
            for found in optimizer_members.instances(torch.amp.GradScaler):
                placing.scale(scaler, found)
        count = len(self._capsule_start["batches"])
        batches = f", {count} batch{'es' * (count != 1)}" if self._way == "batch" else ""
        self.put_what = (
            f"{len(parameters)} parameters, {len(self.mine['buffers'])} buffers, optimizer state of "
            f"{len(self.mine['state'])}, generators{batches}"
        )
        self.optimizer, self.is_put = optimizer, True
        if compat.run_eagerly() is None and "torch._dynamo" in sys.modules:
            torch.compiler.set_stance("force_eager")
        if self._way != "batch":
            self.is_recorded = True
            _native.tape_start(MAX_TAPE)
            if (
                self._rerun_by == "closure"
            ):  # what the program computes before its call of `step` is no part of the recorded one
                optimizer.register_step_pre_hook(lambda *_: self._record_again())
        _native.trace_clear()
        _native.trace_start()
        self._is_ready()

    def _record_again(self):
        if self.is_recorded:
            _native.tape_stop()
            _native.tape_take()
            _native.tape_start(MAX_TAPE)

    def _put_one(self, record, optimizer, parameters, buffers):
        note = self._recorded.put(record, optimizer, parameters, buffers)
        self.notes += [note] * bool(note and note not in self.notes)

    def _put_other(self, record, optimizer, steps_first):
        """steps_first: before the step it steps once more, as far as it does so at all. Where the capsule has only what
        that step leaves, it is until then the program's own, and read by a graph that its backward still needs."""
        for other in sinks_of.watched_optimizers():
            why, parameters, buffers = self._recorded.misfits(record, other)
            if other is not optimizer and not why:
                if (began := self._recorded.began(record)) is not None:  # its steps are a part of the recorded one
                    return self._put_one(began, other, parameters, buffers)
                if steps_first and (record["state"] or _native.window(other)["step"] > 0):
                    # Of a step that is on the tape itself, what it began with is the program's own, too, and has to
                    # come up.
                    self._begins_later = (
                        self._begins_later or self._rerun_by in ("jump", "tape") and record.get("stepped", 0) < 1
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
            self._write("refused", str(e))
        if self._begins_later:  # until then what it computes is the program's own, random numbers among it
            self._record_again()
            self.set_generators(self._capsule_start["generators"])

    def set_generators(self, name: Any) -> None:
        """To the states that the capsule has under that name."""
        try:
            states = self._held.generators(name)
        except Misfit as e:
            self._write("refused", str(e))
        if states is not None:
            states.restore()
