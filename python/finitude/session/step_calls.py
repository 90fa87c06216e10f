"""Units of work: calls that take a batch forward and backward, so that calling them once more is a second run.

A framework's training_step, a closure given to `step`, what finitude.step is given. While a window is open its units
are remembered: references to function and arguments, and the generators as they were. call_again.py calls them once
more.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref

import torch

from .. import _native
from ..base.kinds import is_a
from ..effects.known_libraries import FRAMEWORKS
from ..errors import Reached
from . import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..base.types import BadWindow, Optimizer, Patches, Tensor
    from ..program.rng_generators import Streams

MAX_UNITS = 1024  # of one window; beyond, the window cannot be run again by calling
MAX_TENSORS = 64  # of a unit's arguments, looked at for writes in place


class _Unit:
    __slots__ = (
        "function",
        "args",
        "kwargs",
        "copies",
        "versions",
        "generators",
        "after",
        "modes",
        "serial",
        "fetched",
        "ended",
        "framework",
        "known",
    )

    def __init__(self, function, args, kwargs, framework, known):
        self.function, self.args, self.kwargs, self.framework = function, args, kwargs, framework
        self.copies, self.versions, self.after, self.ended = [], [], None, False
        self.remember((*args, *kwargs.values()))
        self.modes = _modes()
        self.serial = _native.loss_serial()
        self.fetched: int | None = _native.batches_fetched()
        self.generators, self.known = _native.take_generators(), known  # known: those of the program's own among them

    def remember(self, values: Iterable[Any]) -> None:
        for value in values:
            self._remember(value, 3)

    def _remember(self, value, depth):
        """Containers are copied, since a unit may take parts out of its batch; a tensor's version shows writes."""
        if is_a(value, torch.Tensor):
            if len(self.versions) < MAX_TENSORS and not value.is_inference():
                self.versions.append((value, value._version))
        elif depth and type(value) in (dict, list) and len(value) <= 1000:
            self.copies.append((value, value.copy()))
            for inner in value.values() if type(value) is dict else value:
                self._remember(inner, depth - 1)
        elif depth and type(value) is tuple:
            for inner in value:
                self._remember(inner, depth - 1)

    def end(self) -> None:
        self.after = _native.take_generators()
        if _native.batches_fetched() != self.fetched:
            self.fetched = None
        self.ended = True
        _native.unit_ended()

    def name(self) -> str:
        return getattr(self.function, "__qualname__", None) or "the closure"

    def call_again(self) -> Any:
        for container, copy in self.copies:
            if type(container) is list:
                container[:] = copy
            else:
                container.clear()
                container.update(copy)
        self.generators.restore()
        name_batch((*self.args, *self.kwargs.values()))
        grad, autocast, dtype = self.modes
        now = _modes()
        with torch.set_grad_enabled(grad):
            if now[1:] == (autocast, dtype):
                return self.function(*self.args, **self.kwargs)
            with torch.autocast("cpu", dtype=dtype, enabled=autocast):
                return self.function(*self.args, **self.kwargs)


def _modes():
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


class Units:
    """Those of the window that is open."""

    def __init__(self, streams: Streams, explains: bool):
        """explains: this process explains a step of another one, and remembers none of its own."""
        self._streams, self._explains = streams, explains
        self.log = []
        self.window: int | None = None  # number of the window that `log` belongs to
        self.lost = self.had_gradients = False
        self.running: Any = None
        self.again: Any = None  # while units are called again: the optimizer whose step they lead to
        self.again_at: Optimizer | None = None  # the optimizer that stepped then
        self.thread = 0
        self.times_raised = 0
        self.explained: Any = None  # (what a unit raised, (optimizer, alarm, sinks) with its reason)
        self.recorded_at: int | None = None  # its tape is taken: windows that were closed then
        self.buffers = []  # weak references, until the first unit
        self.first: Any = None  # (window, [(buffer, copy)]) of the first unit ever: no step has been seen before it

    def watch_buffers(self, buffers: Iterable[Tensor]) -> None:
        if self.first is None:
            self.buffers.extend(weakref.ref(b) for b in buffers)

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        framework: bool = False,
    ) -> Any:
        """Calls it; remembered unless it is part of a unit. framework: it is a framework's own loop that calls."""
        kwargs = kwargs or {}
        if self.again is not None:
            name_batch((*args, *kwargs.values()))
            return function(*args, **kwargs)
        if self.running is not None or self._explains or not _native.is_on():
            if isinstance(self.running, _Unit):
                self.running.remember((*args, *kwargs.values()))
                self.running.framework |= framework
            return function(*args, **kwargs)
        unit = self.running = self._new(function, args, kwargs, framework)
        try:
            return function(*args, **kwargs)
        except Exception as e:
            unit.end()
            native_callbacks.on_unit_raised(e)
            raise
        finally:
            self.running = None
            if not unit.ended:
                unit.end()

    def of_step(self) -> Sequence[Any]:
        """The calls that the open window, or its second run, consists of."""
        return self.log if self.again is not None or self.window == _native.windows_closed() else ()

    def leave_at(self, optimizer: Optimizer) -> None:
        """Where an optimizer steps while units are called again: back to where they were called from."""
        if self.again is not None:
            self.again_at = optimizer
            raise Reached()

    def begin_again(self, optimizer: Optimizer | None) -> None:
        """They are called again. optimizer: to whose step they lead."""
        self.again, self.again_at = optimizer, None

    def end_again(self) -> None:
        self.again = None

    def note_recorded(self, at: int | None) -> None:
        """Their tape is taken: windows that were closed then. None: there is none."""
        self.recorded_at = at

    def count_raised(self) -> None:
        self.times_raised += 1

    def note_explained(self, error: BaseException, found: BadWindow) -> None:
        """What a unit raised, with its reason."""
        self.explained = error, found

    def give_up(self) -> None:
        """A second run has ended in its middle."""
        self.again = None
        _native.end_again()

    def isolated(self, function: Callable[[], Any]) -> Any:
        """Calls it; nothing in it is remembered."""
        before, self.running = self.running, self.running or function
        try:
            return function()
        finally:
            self.running = before

    def of_framework(self) -> bool:
        """Does a framework run this loop? Its position is in its objects, which a rewind does not put back."""
        return (
            isinstance(self.running, _Unit)
            and self.running.framework
            or self.window == _native.windows_closed()
            and any(u.framework for u in self.log)
        )

    def _new(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], framework: bool) -> _Unit:
        closed = _native.windows_closed()
        if self.recorded_at is not None:  # the program caught the exception, and continues
            self.recorded_at = None
            if not _native.tape_on():
                _native.tape_clear()
        if closed != self.window:
            self.log.clear()
            self.window, self.lost, self.thread = closed, False, threading.get_ident()
            self.had_gradients = _native.gradients_present()
        if self.first is None:
            self.first = closed, [(b, b.detach().clone()) for b in (r() for r in self.buffers) if b is not None]
            self.buffers = []
        if len(self.log) == MAX_UNITS:
            self.lost = True
            self.log.clear()
        unit = _Unit(function, args, kwargs, framework, self._streams.generators)
        self.log.append(unit)
        return unit

    def why_not(self) -> str | None:
        if self.lost:
            return f"more than {MAX_UNITS} units of work in one step"
        if self.thread != threading.get_ident():
            return "it ran in another thread"
        if any(u.fetched is None or (not u.ended and u.fetched != _native.batches_fetched()) for u in self.log):
            return "it draws batches from a loader itself"
        if any(t._version != version for u in self.log for t, version in u.versions):
            return "a batch was changed in place"
        return None


def name_batch(values: Any, name: str = "batch", depth: int = 4) -> None:
    """Records in the trace which storages a batch is made of."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if is_a(value, torch.Tensor):
            _native.trace_name(value, "batch", name if depth == 4 else f"{name}[{key}]")
        elif depth and (isinstance(value, dict) or type(value) in (list, tuple)) and len(value) <= 1000:
            name_batch(value, name if depth == 4 else f"{name}[{key}]", depth - 1)


def _as_unit(original):
    @functools.wraps(original)
    def finitude_unit(*args, **kwargs):
        session = native_callbacks.session
        return original(*args, **kwargs) if session is None else session.units.call(original, args, kwargs, True)

    finitude_unit.finitude_unit = True  # type: ignore[attr-defined]
    return finitude_unit


def watch_frameworks(patches: Patches) -> None:
    """Puts the recorder around what the frameworks call that are imported by now. Cheap where nothing is new."""
    for module, name, method in FRAMEWORKS:
        base = getattr(sys.modules.get(module), name, None)
        todo, seen = [base] if isinstance(base, type) else [], set()
        while todo:
            kind = todo.pop()
            if kind in seen:
                continue
            seen.add(kind)
            todo.extend(kind.__subclasses__())
            own = kind.__dict__.get(method)
            if callable(own) and not hasattr(own, "finitude_unit"):
                patches.set(kind, method, _as_unit(own))
