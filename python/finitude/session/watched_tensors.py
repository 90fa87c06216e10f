"""watch(tensors=...): what the program names is looked at in each step.

A tensor is one more persistent buffer: the engine copies it as a step begins, an alarm is raised where it holds NaN as
the step ends and held none, and what the forward pass of a skipped step wrote is put back. What a function returns may
be another tensor each time: it is read before each step, and a NaN in it is an advisory."""

from __future__ import annotations

import os

import torch
from torch.utils.weak import TensorWeakRef

from .. import _native
from ..base.config import UsageError
from ..base.unseen import unseen
from ..program import sinks
from ..program.optimizer_members import has_memory
from ..program.tensor_stats import count_text
from . import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..base.types import Optimizer, Tensor
    from ..report.document import Report
    from .step_calls import Units

KIND = "watched-tensor"


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
    """torch calls it before each step of any optimizer, once a function is given."""
    session = native_callbacks.session
    if session is not None and os.getpid() == session.pid and not native_callbacks.runs_again():
        session.part(session.watched_tensors.look, optimizer, len(args) > 1 or "closure" in kwargs)


class WatchedTensors:
    def __init__(self, report: Report, units: Units):
        self._report, self._units = report, units
        self._functions: dict[str, Callable[[], Tensor]] = {}
        self._has_nan: set[str] = set()  # names of functions whose last tensor did

    def add(self, tensors: Mapping[str, Tensor | Callable[[], Tensor]]) -> bool:
        """True: `before_step` is needed."""
        given = {name: it for name, it in tensors.items() if isinstance(it, torch.Tensor)}
        for name, tensor in given.items():
            sinks.named[name] = TensorWeakRef(tensor)
            if tensor.device.type != "cpu":
                self._report.add_not_watched(f"{name}: a tensor of watch(tensors=) on a device is not looked at")
        _native.watch_buffers(list(given.values()))
        self._units.watch_buffers(given.values())
        self._functions.update({name: it for name, it in tensors.items() if not isinstance(it, torch.Tensor)})
        return bool(self._functions)

    def look(self, optimizer: Optimizer, has_closure: bool) -> None:
        """A step comes, which the gate has counted by now, unless it has a closure. NaN counts where the step before
        saw none."""
        for name, function in list(self._functions.items()):
            try:
                tensor = function()
                if not isinstance(tensor, torch.Tensor):
                    raise TypeError(f"it returned {type(tensor).__name__} and no tensor")
            except Exception as e:  # of the user's function
                del self._functions[name]
                self._report.complain(f"tensors[{name!r}] of watch is not looked at: {type(e).__name__}: {e}", name)
                continue
            has_nan = _holds_nan(tensor)
            if has_nan and name not in self._has_nan:
                is_known = _native.is_registered(optimizer)
                step = _native.window(optimizer)["step"] - (not has_closure) if is_known else None
                self._report.advise(KIND, step, f"{name} holds {count_text(tensor.detach())} as the step begins")
            self._has_nan = self._has_nan | {name} if has_nan else self._has_nan - {name}


@unseen
def _holds_nan(tensor):
    """False on a device: nothing waits for one."""
    if tensor.device.type != "cpu" or not has_memory(tensor) or _native.is_finite(tensor):
        return False
    statistics = _native.statistics(tensor)
    return statistics is not None and statistics["nan"] > 0
