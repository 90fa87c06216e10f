"""Training without an optimizer and without leaves: torch.func hands out gradients, the program makes new parameters of
them.

There is nothing to veto or to put back. A loss that is not finite, of finite inputs, was applied when the next
derivative is taken of inputs like those that are not finite any more. Where the loss had been finite too, its
derivatives may have spoiled them: a second run shows that."""

from __future__ import annotations

import torch

from .. import _native
from ..base.plain_json import number
from ..errors import NonFiniteError
from ..program import optimizer_members
from ..report import console, incident
from . import script_handled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..base.types import Alarm, Context, Fingerprint, PolicyMachine, Tensor
    from ..rerun.restart import Restart
    from ..rerun.rewind_manual import InPlace
    from ..rerun.under_way import SecondRuns

NAME = "updates by torch.func"
LONG_RUN = 60  # seconds: a run that took longer is not run again for what did no harm
OF_FINITE_LOSS = "its parameters are not finite: the update before wrote them, though its own loss was finite"
AT_BAD_VALUES = "derivatives were taken at values that are not finite"
_functorch = torch._C._functorch


def plain(tensor):
    """The tensor of values inside of what torch.func hands to a function."""
    return optimizer_members.unwrapped(tensor).detach()


def plain_all(tensors: Iterable[Any] | None) -> list[Tensor]:
    return [plain(t) for t in tensors or () if isinstance(t, torch.Tensor)]


def is_wrapped(roots: Iterable[Any]) -> bool:
    return any(isinstance(r, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(r) for r in roots)


class _Bad:
    explained = None  # it is not run again in place

    def __init__(self, step, root, inputs):
        self.step, self.root, self.shapes = step, root.clone(), [x.shape for x in inputs]
        self.expected: Fingerprint = {
            "losses": [_native.checksum(root)],
            "generator": _native.checksum(torch.get_rng_state()),
            "gradients": None,
        }


class Unvetoed:
    """What becomes of a bad step that no optimizer applied, and that nobody could veto."""

    def __init__(
        self,
        context: Context,
        policy: PolicyMachine,
        second_runs: SecondRuns,
        restart: Restart,
        in_place: InPlace,
    ):
        self._context, self._policy = context, policy
        self._second_runs, self._restart, self._in_place = second_runs, restart, in_place

    def report_applied(self, name: str, bad: Any, how: str) -> None:
        """The alarm of a bad step that was applied where nobody could keep it from being. May raise NonFiniteError."""
        alarm = self._alarm(name, bad)
        alarm["weights"] = "damaged"
        alarm["text"] = f"loss is {'NaN' if bad.root.isnan().any() else 'Inf'}; {how}"
        self._decide(alarm, bad, self._policy.on_alarm(0, bad.step, False), _native.action_text("warn"))

    def spoiled(self, name: str, bad: Any) -> Alarm | None:
        """A bad loss of inputs that are not finite, after finite losses. The alarm, explained, where the second run
        shows that a derivative of the call before has spoiled the inputs. Else they may as well be data, of which
        nothing is trained: then it is an advisory, and None is returned."""
        alarm = self._alarm(name, bad)
        if self._context.config.on_alarm == "raise":
            incident.note_failed_way(alarm, "--on-alarm raise runs no step again")
        else:
            self._context.part(self._explain, alarm, bad)
        births = alarm["births"]
        if not births or births[0]["phase"] != "backward":
            _native.tape_clear()
            why = f" ({alarm['rerun_text']})" if alarm["rerun_text"] and not births else ""
            self._context.report.advise(
                "handled-by-script", bad.step, AT_BAD_VALUES + why, alarm["cause"] if births else None, births
            )
            return None
        alarm["weights"] = "damaged"
        alarm["text"] = f"loss is {'NaN' if bad.root.isnan().any() else 'Inf'}; {OF_FINITE_LOSS}"
        self._context.report.begin(alarm)
        return alarm

    def report_spoiled(self, alarm: Alarm) -> None:
        """Reports it, and ends the program where the policy says so. May raise NonFiniteError."""
        self._end(alarm, self._policy.on_alarm(0, alarm["step"], False), _native.action_text("warn"))

    def report_row(self, first: _Bad, row: int) -> None:
        """The alarm of bad losses one after another whose gradients the script dropped. May raise NonFiniteError."""
        alarm = self._alarm(NAME, first)
        alarm["text"] = script_handled.row_text(row, "loss was not finite", first.step)
        action = "warn" if self._context.config.on_alarm == "warn" else "stop"
        self._decide(alarm, first, action, "reported, the script drops the step")

    def _alarm(self, name: str, bad: Any) -> Alarm:
        alarm = self._context.alarms.of_class(name, 0, bad.step, "loss", "loss")
        alarm["loss"] = number(float(bad.root)) if bad.root.numel() == 1 else None
        return alarm

    def _decide(self, alarm: Alarm, bad: Any, action: str, reported: str) -> None:
        """Explains it, and ends the program where `action` says so. reported: what is said where it continues."""
        self._context.report.begin(alarm)
        self._explain(alarm, bad)
        self._end(alarm, action, reported)

    def _explain(self, alarm: Alarm, bad: Any) -> None:
        if bad.explained is not None:
            if not self._in_place.apply(bad.explained, alarm):
                self._restart.run(alarm, bad.expected, hand=bad.step)
        elif self._second_runs.left.take("loss", False, False, False):
            self._restart.run(alarm, bad.expected, hand=bad.step)

    def _end(self, alarm: Alarm, action: str, reported: str) -> None:
        alarm.pop("optimizer_ordinal", None)
        alarm["action"] = "stopped" if action in ("stop", "raise") else reported
        self._context.report.add_alarm(alarm)
        self._context.console.print_alarm(alarm)
        if action in ("stop", "raise"):
            raise NonFiniteError(console.message(self._context.report, alarm), report=alarm)


class Functional:
    def __init__(self, context: Context, restart: Restart, unvetoed: Unvetoed):
        self._context, self._restart, self._unvetoed = context, restart, unvetoed
        self.bad: _Bad | None = None  # a bad loss of finite inputs; whether its gradients were used is not known yet
        self.first: _Bad | None = None
        self.count = 0  # of those after which it continued with values that are finite
        self.row_begins: Any = None
        self.row = 0  # those one after another
        self.is_damaged = False
        self.is_proven = False  # derivatives were taken of other values of the same shapes, one after the other
        self.shapes: list[Any] = []  # of those inputs
        self.is_asked = False  # a second run has looked where inputs that are not finite came from
        self.before: list[tuple[Any, int]] | None = (
            None  # (shape, checksum) of the inputs of the last call, until that is proven
        )

    def begin(self, roots: Sequence[Any], inputs: Sequence[Any]) -> None:
        """An outermost engine call of torch.func begins. May raise NonFiniteError."""
        roots, inputs = plain_all(roots), plain_all(inputs)
        if self.is_damaged or not inputs:
            return
        if not self.is_proven:
            now = [(x.shape, _native.checksum(x)) for x in inputs]
            self.is_proven = (
                self.before is not None and [n[0] for n in now] == [b[0] for b in self.before] and now != self.before
            )
            self.before, self.shapes = now, [n[0] for n in now]
        root = next((r for r in roots if not _native.is_finite(r)), None)
        bad, self.bad = self.bad, None
        if bad is None and root is None:
            return  # a healthy step: the parameters are not read
        sound = all(_native.is_finite(x) for x in inputs)
        is_like = self.is_proven and self.shapes == [x.shape for x in inputs]
        if bad is None and not sound and is_like and not self.is_asked:
            self.is_asked = True
            alarm = self._unvetoed.spoiled(NAME, _Bad(_native.hand_calls(), root, inputs))
            if alarm is not None:
                self.is_damaged = True
                self._unvetoed.report_spoiled(alarm)
            return
        if bad is not None and not sound and bad.shapes == [x.shape for x in inputs]:
            self.is_damaged = True
            self._unvetoed.report_applied(NAME, bad, "its gradients, taken by torch.func, went into the parameters")
            return
        if bad is not None and sound and bad.shapes == [x.shape for x in inputs]:
            self.first, self.count = self.first or bad, self.count + 1
            self.row_begins, self.row = self.row_begins or bad, self.row + 1
            if self.row == max(1, self._context.config.max_skips):
                self._unvetoed.report_row(self.row_begins, self.row)
        if root is None:
            self.row_begins, self.row = None, 0
        if sound and root is not None:
            self.bad = _Bad(_native.hand_calls(), root, inputs)

    def finish(self) -> None:
        """At the end of the program: bad losses that spoiled no parameter; the gradients of the last may lie in what it
        keeps."""
        if self.is_damaged:
            return
        if self.first is not None:
            alarm = self._context.alarms.of_class(NAME, 0, self.first.step, "loss", "loss")
            alarm["advisory"] = {
                "kind": "handled-by-script",
                "step": self.first.step,
                "text": "",
                "births": [],
                "cause": None,
            }
            explains = self._context.config.on_alarm != "raise" and not self._context.report.alarms
            if self._context.report.seconds() < LONG_RUN and explains:
                self._restart.run(alarm, self.first.expected, hand=self.first.step)
            text = (
                f"{self.count} losses that torch.func took gradients of, from this step on, are"
                if self.count > 1
                else "a loss that torch.func took gradients of is"
            )
            self._context.report.advise(
                "handled-by-script",
                self.first.step,
                f"{text} not finite; what it took them of next is finite",
                alarm["cause"] if alarm["births"] else None,
                alarm["births"],
            )
        if self.bad is not None:
            self._context.report.advise(
                "handled-by-script", self.bad.step, "the last loss that torch.func took gradients of is not finite"
            )
