"""In a program that `finitude replay CAPSULE --with` started: the capsule's step is put in place, run under trace, and
judged.

Where the capsule holds the batch as a loader gave it, the first batch that fits is replaced, and weights, optimizer
state and generators go in with it. Else they go in where the first step (or the step before the capsule's) has
returned, which is where the recorded step began, and what the program then computes from has to be what the capsule was
computed from."""

from __future__ import annotations

import json
import os

import torch
from torch.utils.data import dataloader

from .. import _native
from ..base import say
from ..base.plain_json import number, safe
from ..capsules import placing
from ..capsules.start_check import is_sound
from ..program import anomaly, batch_source, optimizer_members, ranks, sinks as sinks_of, state_format, step_start_state
from ..report import incident
from ..session import step_calls
from . import sound_step
from .loaders import Loaders
from .sound_step import alarm_in, birth_in, has_bad_loss, same_birth
from .step_in_place import StepInPlace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from ..base.types import Injected, Optimizer, Session, Sink, Tensor, Verdict, Window

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
        self.start = self.about["start"]
        held = placing.Held(self.start, data)
        self.loaders: Any = Loaders(held) if order["way"] == "batch" else None
        self.session: Session  # from `attach` on
        self.given = 0
        self.step = StepInPlace(
            self.start,
            held,
            self.inputs,
            not self.about["step"],
            order["way"],
            alarm_in(self.about).get("rerun_by"),
            self.write,
            self._is_ready,
        )

    def _is_ready(self) -> None:
        """The step is in place."""

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
            self.step.set_generators(self.start["generators"])
            _native.trace_start()
        first = max(0, self.about["step"] - 1) if self.order["way"] == "step" else 0
        _native.arm_at(self.step.mine["ordinal"], first, first, False)
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

    def left_out(self, optimizer: Optimizer) -> list[Any] | None:
        """A step that the first run skipped: that is seen at its values."""

    def on_window(self, optimizer: Optimizer, dropped: Sequence[Any]) -> bool | None:
        """dropped: losses that the program looked at and gave to no backward."""
        if not self.step.is_of_capsule(optimizer) or self.step.waits:
            return None
        if not self.step.is_put and self.order["way"] == "start":
            self.step.is_there_already(optimizer)
        window = _native.window(optimizer)
        if (
            not self.step.is_put and self.order["way"] == "step" and window["step"] + 1 < self.about["step"]
        ):  # bad, too, and not the one
            _native.consume_losses(optimizer)
            self.session.draws.note()
            return self.session.skipped.continue_without(optimizer, window["step"])
        if not self.step.is_put:
            self.step.put_after(optimizer)
            return None
        if has_bad_loss(window) or sinks_of.of_optimizer(optimizer):
            self._failed(optimizer, sinks_of.of_optimizer(optimizer))
        self._check_inputs()
        is_dropped = bool(dropped) or self.session.bad_windows.checked() is not None
        self._check_backward(optimizer, window, is_dropped)
        self.step.waits = True  # what the optimizer makes of it is part of the step
        placing.rate(self.step.mine, optimizer)
        optimizer.register_step_post_hook(lambda *_: self._stepped(window, is_dropped))
        return None

    def on_left_bad(self, optimizer: Optimizer) -> None:
        """A step that is dropped is judged where it would have been taken."""

    def row_dropped(self) -> None:
        """So are several in a row."""

    def row_raised(self, error: BaseException) -> None:
        """And those of which backward raised."""

    def on_searched(self, optimizer: Optimizer, sinks: Sequence[Sink], before: Any) -> None:
        if not self.step.is_put and self.order["way"] == "start" and self.step.is_of_capsule(optimizer):
            self.step.is_there_already(optimizer, before)
        if self.step.is_put and self.step.is_of_capsule(optimizer):
            self._failed(optimizer, sinks)

    def on_searched_well(self, optimizer: Optimizer, window: Window, before: Any) -> None:
        if not self.step.is_of_capsule(optimizer):
            return
        if not self.step.is_put and self.order["way"] == "start":
            self.step.is_there_already(optimizer, before)
        if self.step.is_put:
            self._check_inputs()
            dropped = self.session.bad_windows.checked() is not None
            self._check_backward(optimizer, window, dropped)
            self._stepped(window, dropped)
        if self.order["way"] == "step" and window["step"] + 1 < self.about["step"]:
            return
        self.step.put(optimizer)
        self.step.set_generators(self.start["generators"])

    def on_scaler_skip(self, optimizer: Optimizer, beyond: bool) -> None:
        if self.step.is_put and self.step.is_of_capsule(optimizer):
            self._failed(optimizer, sinks_of.of_optimizer(optimizer), "the GradScaler left the step out")

    def on_written(self, optimizer: Optimizer, sinks: Sequence[Sink]) -> None:
        if self.step.is_put and self.step.is_of_capsule(optimizer):
            self._failed(optimizer, sinks, "written by the optimizer")

    def program_ended(self, error: BaseException | None) -> NoReturn:
        session = self.session
        if (
            self.order["way"] == "start"
            and not self.step.is_put
            and (optimizer := self.step.fitting_optimizer()) is not None
        ):
            self.step.is_there_already(optimizer)
        if self.step.is_put:
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

    # -- where a loader gives the batch ----------------------------------------------------------

    def _watch_loaders(self):
        original = dataloader._BaseDataLoaderIter.__dict__["__next__"]

        def __next__(iterator):
            return self._on_batch(iterator, original.__get__(iterator)())

        dataloader._BaseDataLoaderIter.__next__ = __next__  # type: ignore[method-assign]

    def _on_batch(self, iterator, batch):
        if self.step.waits or not torch.is_grad_enabled():
            return batch
        found = self.loaders.give(iterator, batch)
        if found is None:
            return batch
        if (
            self.step.is_put
            and self.given >= len(self.start["batches"])
            and (_native.pending_bad_losses() or self.session.bad_windows.checked())
        ):
            self._failed(self.step.optimizer, [], "the program itself left the step out")
        whole, generators = found
        if not self.step.is_put:
            optimizer = self.step.fitting_optimizer()
            if optimizer is None:
                return batch  # made later, or refused when it steps
            self.step.put(optimizer)
        self.given += 1
        step_calls.name_batch([whole])
        self.step.set_generators(generators)
        return whole

    # -- the verdict ----------------------------------------------------------------------------

    def _check_inputs(self):
        """Where the program made its batch itself: was it computed from what the capsule was computed from?"""
        if not self.step.is_recorded:
            return
        self.step.is_recorded = False
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
        why, notes = sound_step.without_backward(self.about, self.step.mine, optimizer, window)
        if why:
            self._failed(
                optimizer,
                [],
                LEFT_OUT if dropped else "",
                otherwise=f"the program reached the optimizer's step, but {why}, and nothing was "
                "found that is not finite",
            )
        self.step.notes += notes

    def _stepped(self, window: Window, dropped: bool = False) -> None:
        optimizer = self.step.optimizer
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
            f"{incident.parts_of_step(loss is not None, largest > 0)} finite, and so is what the optimizer wrote",
            loss=loss,
            grad_absmax=number(largest),
        )

    def _failed(
        self, optimizer: Any, sinks: Any, text: str = "", otherwise: str = "", only_if_same: bool = False
    ) -> None:
        """otherwise: what is said where no birth is found. only_if_same: returns where it is another one than recorded:
        a value that the program looks at need not be that of its loss."""
        if self.step.is_recorded:
            self._check_inputs()
        found = self.session.analysis.findings(optimizer, sinks)
        if birth := found["births"][0] if found.get("births") else None:
            batch_source.name_loop_line(birth)
        before = birth_in(self.about)
        if only_if_same and not same_birth(before, birth):
            self.step.notes.append(text + (f" ({birth['op'] or birth['phase']})" if birth is not None else ""))
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
        step = getattr(self, "step", None)  # not yet, where the capsule cannot be read
        temporary = self.order["result"] + f".{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump(
                safe(
                    {
                        "verdict": verdict,
                        "text": text,
                        "put": step.put_what if step is not None else "",
                        "notes": step.notes if step is not None else [],
                        **more,
                    }
                ),
                f,
            )
        os.replace(temporary, self.order["result"])
        say.flush()
        os._exit(0)
