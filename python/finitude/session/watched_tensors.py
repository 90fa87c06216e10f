"""watch(tensors=...): what the program names is looked at in each step.

A tensor is one more persistent buffer: the engine copies it as a step begins, an alarm is raised where it holds NaN as
the step ends and held none, and what the forward pass of a skipped step wrote is put back. What a function returns may
be another tensor each time: it is read before each step, and a NaN in it is an advisory. The largest magnitude of each
is a series of the store."""

from __future__ import annotations

import os

import torch
from torch.utils.weak import TensorWeakRef

from .. import _native
from ..base.config import UsageError
from ..base.unseen import unseen
from ..program import sinks
from ..program.optimizer_members import buffers, has_memory
from ..program.tensor_stats import count_text
from . import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..base.types import Optimizer, Tensor
    from ..report.document import Report
    from .step_calls import Units

KIND = "watched-tensor"
MOST_STORED = 32  # tensors that have a series
LARGE, EVERY = 1 << 20, 16  # a tensor of more elements is read for it in one of so many steps


def check(tensors: object) -> None:
    """Raises UsageError where it is no dictionary of names with tensors and functions."""
    if not isinstance(tensors, dict):
        raise UsageError(f"watch: tensors is a dictionary, {{name: tensor or function}}, not {type(tensors).__name__}")
    for name, given in tensors.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"watch: tensors: a name is text, not {name!r}")
        if not isinstance(given, torch.Tensor) and not callable(given):
            raise UsageError(f"watch: tensors[{name!r}] is a tensor or a function, not {type(given).__name__}")


def before_step(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """torch calls it before each step of any optimizer, once a tensor or a function is given."""
    session = native_callbacks.session
    if session is not None and os.getpid() == session.pid and not native_callbacks.runs_again():
        session.part(session.watched_tensors.look, optimizer, len(args) > 1 or "closure" in kwargs)


class WatchedTensors:
    def __init__(self, report: Report, units: Units):
        self._report, self._units = report, units
        self._functions: dict[str, Callable[[], Tensor]] = {}
        self._given_names: list[str] = []  # of all, in the order in which they were given
        self._has_nan: set[str] = set()  # names of functions whose last tensor did

    def add(self, tensors: Mapping[str, Tensor | Callable[[], Tensor]]) -> bool:
        """True: `before_step` is needed."""
        given = {name: it for name, it in tensors.items() if isinstance(it, torch.Tensor)}
        for name, tensor in given.items():
            sinks.named[name] = TensorWeakRef(tensor)
            if tensor.device.type != "cpu":
                self._report.add_not_watched(f"{name}: a tensor of watch(tensors=) on a device is not looked at")
        self._copy_at_steps(list(given.values()))
        self._functions.update({name: it for name, it in tensors.items() if not isinstance(it, torch.Tensor)})
        self._given_names += [name for name in tensors if name not in self._given_names]
        return bool(tensors)

    def watch_buffers_of(self, optimizer: Optimizer) -> None:
        """What its modules hold is copied as a step begins, so that a skipped one is taken back. Called before the
        first forward pass: later the window of its first step has begun."""
        self._copy_at_steps([buffer for _, buffer in buffers(optimizer)])

    def _copy_at_steps(self, tensors):
        _native.watch_buffers(tensors)
        self._units.watch_buffers(tensors)

    def _store(self, place, name, step, tensor):
        """Into the series of the run: the largest magnitude as the step begins. Of a large tensor in some steps."""
        if step % (1 if tensor.numel() <= LARGE else EVERY) == 0 and (absmax := _absmax(tensor)) is not None:
            _native.store_tensor(place, name, step, absmax)

    def look(self, optimizer: Optimizer, has_closure: bool) -> None:
        """A step comes, which the gate has counted by now, unless it has a closure. NaN counts where the step before
        saw none."""
        is_known = _native.is_registered(optimizer)
        window = _native.window(optimizer) if is_known else None
        step = window["step"] - (not has_closure) if window is not None else None
        is_stored = window is not None and window["ordinal"] == 0 and step is not None and step >= 0
        for place, name in enumerate(self._given_names[:MOST_STORED] if is_stored else ()):
            held = sinks.named.get(name)
            if (tensor := held() if held is not None else None) is not None and step is not None:
                self._store(place, name, step, tensor)
        for name, function in list(self._functions.items()):
            try:
                tensor = function()
                if not isinstance(tensor, torch.Tensor):
                    raise TypeError(f"it returned {type(tensor).__name__} and no tensor")
            except Exception as e:  # of the user's function
                del self._functions[name]
                self._report.complain(f"tensors[{name!r}] of watch is not looked at: {type(e).__name__}: {e}", name)
                continue
            if is_stored and step is not None and name in self._given_names[:MOST_STORED]:
                self._store(self._given_names.index(name), name, step, tensor)
            has_nan = _holds_nan(tensor)
            if has_nan and name not in self._has_nan:
                self._report.advise(KIND, step, f"{name} holds {count_text(tensor.detach())} as the step begins")
            self._has_nan = self._has_nan | {name} if has_nan else self._has_nan - {name}


@unseen
def _holds_nan(tensor):
    """False on a device: nothing waits for one."""
    if tensor.device.type != "cpu" or not has_memory(tensor) or _native.is_finite(tensor):
        return False
    statistics = _native.statistics(tensor)
    return statistics is not None and statistics["nan"] > 0


@unseen
def _absmax(tensor):
    """Of its finite values; None on a device, and where there is none."""
    if tensor.device.type != "cpu" or not has_memory(tensor):
        return None
    statistics = _native.statistics(tensor)
    return None if statistics is None else float(statistics["absmax"])
