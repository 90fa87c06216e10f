"""Where a non-finite value has arrived: what an alarm is raised for, found again whenever it is asked."""

from __future__ import annotations

import os

import torch
from torch.utils.weak import TensorWeakRef

from .. import _native
from ..base.kinds import is_a
from ..base.plain_json import number
from ..base.unseen import unseen
from ..errors import raised_from_ours
from . import anomaly, frames_at_raise, optimizer_members, step_wrapper
from .tensor_stats import count_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._native import Known
    from ..base.types import Alarm, BadWindow, Optimizer, Sink, SinkKind, Tensor
    from .frames_at_raise import Seen

BAD = 2  # GradMark::State: at least infinite

_unused = {}  # id(parameter) -> (weak reference, checksum) of those that held NaN or Inf and had no gradient at first
named: dict[str, TensorWeakRef] = {}  # what `watch(tensors=)` was given; they live as long as the program wants


def _named_tensors():
    return [(name, tensor) for name, reference in named.items() if (tensor := reference()) is not None]


def of_optimizer(optimizer: Optimizer) -> list[Sink]:
    names, params = optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)
    sinks: list[Sink] = [
        ("gradient", n, p.grad) for n, p in zip(names, params) if p.grad is not None and not _native.is_finite(p.grad)
    ]
    if not sinks:
        sinks = bad_buffers(optimizer)
    return sinks


def bad_parameters(optimizer: Optimizer, written: bool) -> list[Tensor]:
    """Those whose gradients are bad; all where the step has written them."""
    params = optimizer_members.parameters(optimizer)
    return params if written else [params[i] for i, m in enumerate(_native.window(optimizer)["marks"]) if m >= BAD]


def bad_buffers(optimizer: Optimizer) -> list[Sink]:
    """Those that hold NaN. An infinity may be meant, and is none of a mean or variance."""
    return [
        ("buffer", n, b)
        for n, b in optimizer_members.persistent_buffers(optimizer) + _named_tensors()
        if (found := _native.statistics(b)) and (found["nan"] or found["inf"] and optimizer_members.is_statistic(n))
    ]


@unseen
def note_unused(optimizer: Optimizer) -> None:
    """The first step comes. A parameter without a gradient may hold what is not finite, as a mask does. An optimizer
    outside torch.optim may write it all the same."""
    for p in optimizer_members.parameters(optimizer):
        if p.grad is None and not _native.is_finite(p):
            _unused[id(p)] = TensorWeakRef(p), _native.checksum(p)


def _is_frozen(parameter):
    return not parameter.requires_grad and parameter.grad is None


def is_result(optimizer: Optimizer, parameter: Tensor) -> bool:
    """False for a parameter without a gradient that no step of this optimizer has written: torch.optim skips those.
    One that can get a gradient must also hold the bits of the first step, since a loop may clear all gradients."""
    if parameter.grad is not None:
        return True
    noted, checksum = _unused.get(id(parameter), (lambda: None, None))
    if noted() is parameter and _native.checksum(parameter) == checksum:
        return False
    return not (_is_frozen(parameter) and step_wrapper.is_torchs(type(optimizer)))


def bad_state(optimizer: Optimizer, allowed: Sequence[Tensor]) -> list[Sink]:
    """(kind, name, tensor) of every parameter and state tensor that holds NaN or Inf. Empty where only state overflowed
    to Inf: such a parameter no longer moves, and nothing is ruined. allowed: parameters that may hold such values."""
    found = written_state(optimizer, allowed)
    return [] if only_overflowed(found) else found


def written_state(optimizer: Optimizer, allowed: Sequence[Tensor]) -> list[Sink]:
    found: list[Sink] = []
    named = list(zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)))
    for name, p in named:
        if not _native.is_finite(p) and not any(p is a for a in allowed) and is_result(optimizer, p):
            found.append(("parameter", name, p))
    for name, p in named:
        if _is_frozen(p) and step_wrapper.is_torchs(type(optimizer)):
            continue
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key, value in (state or {}).items():
            if is_a(value, torch.Tensor) and not _native.is_finite(value):
                found.append(("state", f"{name}.{key}", value))
    return found


def only_overflowed(found: list[Sink]) -> bool:
    return bool(found) and all(
        kind == "state" and (s := _native.statistics(t)) and not s["nan"] for kind, _, t in found
    )


def watched_optimizers() -> list[Optimizer]:
    """Without those that another thread trains, where this thread trains one too: that thread may be freeing one of
    their gradients."""
    return [o for o in optimizer_members.instances(torch.optim.Optimizer) if _native.is_trained_here(o)]


def _parameter_name(loss):
    for optimizer in watched_optimizers():
        if _native.window(optimizer)["ordinal"] == loss["ordinal"]:
            return optimizer_members.names(optimizer)[loss["parameter"]]
    return str(loss["parameter"])


def looked_at() -> list[Tensor]:
    """The bad losses that BadWindows.checked is about, without those that another one was computed from. The script may
    have no name for them any more: the engine holds them while a trace is taken."""
    wanted = {loss["sum"] for loss in _native.waiting_checks()}
    found, last, below = [], [], set()
    for it in _native.instances((torch.Tensor,)) if wanted else ():
        if (
            type(it) is torch.Tensor
            and it.requires_grad
            and not it.is_leaf
            and not _native.is_finite(it)
            and _native.checksum(it) in wanted
        ):
            found.append(it)
    numbered = {id(it): node._sequence_nr() for it in found if (node := it.grad_fn) is not None}
    for it in sorted(found, key=lambda it: numbered[id(it)], reverse=True):
        if it.grad_fn not in below:
            last.append(it)
            below.update(optimizer_members.nodes_of([it]))
    return last


def as_looked_at(looked: Sequence[Tensor]) -> list[Sink]:
    """Sinks of a program that an exception ended after it had looked at these. One number is its loss; of a larger
    tensor it is not known what the program makes."""
    return [("loss", "loss" if it.numel() == 1 else "that was looked at", it) for it in looked]


def describe(seen: Seen) -> str:
    return f"{seen.name} holds {seen.words} at {os.path.basename(seen.file)}:{seen.line}"


def _stepping(frames):
    """The watched optimizer whose `step` one of these frames, the outermost first, is: what its closure raises is of
    that step."""
    for code, frame in ((frame.f_code, frame) for frame in frames):
        mine = (
            optimizer_members.names_of(frame).get(code.co_varnames[0])
            if code.co_name == "step" and code.co_argcount
            else None
        )
        if is_a(mine, torch.optim.Optimizer) and _native.is_registered(mine):
            return mine
    return None


def _owner(roots, optimizers):
    """Of these optimizers the first that has parameters which the roots were computed from, or the first of all."""
    leaves = {id(leaf) for leaf in optimizer_members.leaves_of(roots)}
    return next((o for o in optimizers if any(id(p) in leaves for p in optimizer_members.parameters(o))), optimizers[0])


class BadWindows:
    """Finds the window that holds a bad value, and makes its alarm: (optimizer, alarm, sinks), or None."""

    def __init__(
        self,
        known: Known,
        new_alarm: Callable[[Optimizer, SinkKind, str], Alarm],
        alarm_of: Callable[[str, int, int, SinkKind, str], Alarm],
        is_damaged: Callable[[], bool],
    ):
        """known: bad tensors of earlier alarms. new_alarm: takes optimizer, kind and name of the sink. alarm_of: takes
        class and number of the optimizer, step, kind and name of the sink. is_damaged: has a program without an
        optimizer applied a bad step?"""
        self._known, self._new_alarm, self._alarm_of, self._is_damaged = known, new_alarm, alarm_of, is_damaged

    def pending(self) -> BadWindow | None:
        """Of a window that holds a non-finite loss or gradient."""
        for optimizer in watched_optimizers():
            window = _native.window(optimizer)
            losses = [loss for loss in window["losses"] if loss["bad"] and loss["owned"]]
            sinks = [s for s in of_optimizer(optimizer) if s[2] not in self._known]
            if not losses and not sinks:
                continue
            kind, name = sinks[0][:2] if not losses else ("loss", "loss")
            alarm = self._new_alarm(optimizer, kind, name)
            alarm["loss"] = number(float(losses[0]["value"])) if losses else None
            alarm["text"] = "loss is not finite" if losses else f"{kind} {name} is not finite"
            return optimizer, alarm, sinks
        return None

    def lost(self) -> BadWindow | None:
        """(None, alarm, []) for a bad loss whose optimizer the program has let go of, as where a function that trained
        raised, and its caller ended the program."""
        losses = _native.pending_bad_losses()
        if (
            not losses or self._is_damaged()
        ):  # what a program without an optimizer has applied knowingly is in each that follows
            return None
        loss = losses[0]
        alarm = self._alarm_of(loss["optimizer"], loss["ordinal"], loss["step"], "loss", "loss")
        alarm["loss"], alarm["micro_batch"] = number(float(loss["value"])), loss["micro_batch"]
        alarm["text"] = "loss is not finite"
        return None, alarm, []

    def checked(self) -> BadWindow | None:
        """(None, alarm, []) for a bad loss that the script looked at or asked gradients of, and after which no backward
        came; or for bad gradients that it asked for."""
        losses = _native.waiting_checks()
        if not losses:
            return None
        _native.sink_waiting_checks()
        loss = losses[0]
        if loss["parameter"] >= 0:
            name = _parameter_name(loss)
            alarm = self._alarm_of(loss["optimizer"], loss["ordinal"], loss["step"], "gradient", name)
            alarm["text"] = _native.gradient_text(name)
            return None, alarm, []
        alarm = self._alarm_of(loss["optimizer"], loss["ordinal"], loss["step"], "loss", "loss")
        alarm["loss"], alarm["text"] = number(float(loss["value"])), "loss is not finite"
        return None, alarm, []

    def in_frames(self, error: BaseException | None) -> BadWindow | None:
        """Of a script that checks its values and gives up, or passes them to code that refuses them: they are variables
        of the frames that raised.

        A loss (one element, part of a graph) counts as it is; any other tensor only where the exception is about such a
        value (see frames_at_raise), since masks and padding may lie around anywhere."""
        optimizers = watched_optimizers()
        traceback = getattr(error, "__traceback__", None)
        if not optimizers or traceback is None:
            return None
        frames = []
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        for frame in reversed(frames):
            if optimizer_members.is_library(frame.f_code.co_filename):
                continue
            for name, value in optimizer_members.names_of(frame).items():
                if (
                    is_a(value, torch.Tensor)
                    and _native.has_graph(value)
                    and value.numel() == 1
                    and not _native.is_finite(value)
                    and value not in self._known
                ):
                    return self._refused(
                        frames,
                        optimizers,
                        name,
                        [value],
                        f"{name} holds {count_text(value.detach())} and was not given to backward",
                    )
        refused = frames_at_raise.look(error, self._known.__contains__).refused
        if (first := next((seen for seen in refused if seen.is_tensor), None)) is None:
            return None
        values = [
            seen.value for seen in refused if seen.is_tensor and (seen.file, seen.line) == (first.file, first.line)
        ]
        return self._refused(frames, optimizers, first.name, values, describe(first))

    def _refused(self, frames, optimizers, name, values, text):
        optimizer = _stepping(frames) or _owner(values, optimizers)
        alarm = self._new_alarm(optimizer, "loss", name)
        if len(values) == 1 and values[0].numel() == 1:
            alarm["loss"] = number(float(values[0].detach()))
        alarm["text"] = text
        return optimizer, alarm, [("loss", name, value) for value in values]

    def derivative(self, error: BaseException | None) -> BadWindow | None:
        """A gradient that torch's anomaly mode ended a backward pass at. It came to no parameter."""
        if (anomalous := anomaly.found(error)) is None:
            return None
        node, output, roots = anomalous
        name, given = anomaly.name_of(node, output), anomaly.given(node, output)
        optimizers = watched_optimizers()
        optimizer = _owner(roots, optimizers) if optimizers else None
        if optimizer is not None:
            alarm = self._new_alarm(optimizer, "gradient", name)
        elif _native.hand_calls() and not _native.counters()["optimizers"]:
            alarm = self._alarm_of("", 0, _native.hand_calls() - 1, "gradient", name)
        else:
            return None  # its optimizer is gone
        if len(roots) == 1 and roots[0].numel() == 1:
            alarm["loss"] = number(float(roots[0].detach()))
        alarm["text"] = f"{node} gave NaN in backward, which anomaly mode ended"
        return optimizer, alarm, [] if given is None else [("gradient", name, given)]

    def behind(self, error: BaseException | None) -> BadWindow | None:
        """The bad value that a script's own exception is about. One that the script raised from ours is about a step
        that was reported, unless another window holds a bad value."""
        return (
            self.pending()
            or self.derivative(error)
            or (self.in_frames(error) if not raised_from_ours(error) else None)
            or self.lost()
        )
