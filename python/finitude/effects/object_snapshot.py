"""What a second run writes into the program's own objects is taken back: counters, lists of metrics, queues, averages.

Names, iterators, generators, buffers and gradients are put back by the rewind; an attribute such as `self.global_step`,
a list that the loop appends to, a moving average of its own lie on the heap. Looked at only when a bad step is about
to run again, so healthy steps pay nothing. Objects are copied one level deep each and put back in place, by identity.
"""

from __future__ import annotations

import collections
import functools
import math
import types

import torch

from .. import _native
from ..base._places import is_library
from ..base.kinds import is_a
from ..program import signals
from ..program.optimizer_members import has_memory, is_function, is_users_class, names_of
from . import channels, consumed_iterators, copies, notebook_cells, rebound_attributes
from .files import logger_classes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from types import FrameType
    from typing import Any

    from ..base.types import Tensor

MAX_OBJECTS, MAX_ELEMENTS = 20_000, 2_000_000
MAX_UNCOUNTED = 16 << 20  # bytes of a tensor that has no write to its name
MAX_BYTES = 256 << 20  # of tensors; what is beyond is watched by a checksum, and named if it was written twice
PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
CONTAINERS = (list, dict, set, bytearray, collections.deque)
OF_MODULES = frozenset({"_parameters", "_buffers", "_modules"})


class Ledger:
    """A copy of what the frames of the program reach, but for `owned` tensors and the objects of `left_alone`.
    since: so many windows were closed when the second run is to begin."""

    def __init__(
        self, frame: FrameType | None, owned: Collection[Tensor] = (), left_alone: Collection[Any] = (), since: int = 0
    ):
        self._uncounted = []  # (tensor, name) of those that have no write to their name
        self._copies, self._tensors = [], []  # functions that put back; (name, tensor, checksum, copy or None)
        self.read_on = []  # names of what cannot be rewound, and may have been read from since
        self.one_way = []  # names of what gives each thing once, and may have been used since
        self._since = since
        self._drawn = consumed_iterators.Drawn()
        self._versions = []  # of those tensors
        self._back = set()  # ids of those that go back with the window's start
        self._figures, self._lists = [], []  # (where it is, what it held), (list, what it held): see `counted`
        self._bound = rebound_attributes.Bound()  # tensors that another one may take the place of
        self._generators = []  # the same, for random numbers of the program's own and numpy's arrays
        self._seen = {id(x) for x in (*owned, *left_alone)}
        self._kept = [*owned, *left_alone]  # ids are those of living objects
        self._loggers = logger_classes()  # held by what they are passed; what they are made of is theirs
        self._elements = self._bytes = 0
        if (shell := notebook_cells.shell()) is not None:  # its names are among those of the cells
            self._seen.add(id(shell))
        todo, outermost, modules = [], False, []
        while frame is not None and not outermost:
            if not is_library(frame.f_code.co_filename):
                if not is_function(frame) and frame.f_locals is frame.f_globals:
                    outermost = (
                        frame.f_globals.get("__name__") == "__main__"
                    )  # what is around it runs the program, as a notebook does
                    names = dict(frame.f_globals)
                    self._globals(frame.f_globals, todo, consumed_iterators.idle(frame, names))
                else:
                    modules.append(frame.f_globals)
                    names = names_of(frame)
                    idle = consumed_iterators.idle(frame, names)
                    todo.extend((v, k) for k, v in names.items() if k not in idle)
                for it in names.values():
                    self._drawn.in_frame(it)
            frame = frame.f_back
        for names in modules:
            self._globals(names, todo)
        for it in _native.running_iterators():
            self._drawn.in_frame(it)
            todo.append((it, "a loop's iterator"))
        while todo and len(self._seen) < MAX_OBJECTS and self._elements < MAX_ELEMENTS:
            self._look(*todo.pop(), todo)
        # Writes through .data or NumPy are not counted: what is not large is taken to be written, while those that were
        # leave room.
        for tensor, name in self._uncounted:
            if self._bytes + tensor.numel() * tensor.element_size() <= MAX_BYTES:
                self._tensor(tensor, name)
        self.read_on = list(dict.fromkeys(self._drawn.once))

    def _globals(self, names, todo, idle=()):
        """Module globals: figures, which a function may write; the names of frames belong to the rewind."""
        if id(names) in self._seen:
            return
        self._seen.add(id(names))
        figures = {k: v for k, v in names.items() if is_a(v, (int, float, str))}
        self._copies.append(lambda: _update(names, figures))
        self._figures.append((copies.OfDict(names), figures))
        todo.extend((v, k) for k, v in names.items() if k not in idle)

    def _look(self, it: Any, name: str, todo: list[tuple[Any, str]]) -> None:
        if is_a(it, PLAIN) or id(it) in self._seen or is_a(it, self._loggers):
            return
        self._seen.add(id(it))
        self._kept.append(it)
        kind = type(it)
        if issubclass(kind, (type, types.ModuleType)):
            self._class_or_module(it, todo)
            return
        if channels.is_one_way(it):
            if channels.is_used(it, self._since):
                self.one_way.append(name)
            return
        if (found := copies.random_or_array(it, MAX_BYTES - self._bytes)) is not None:
            self._generators.append(found[0])
            self._bytes += found[1]
            return
        if (inner := self._drawn.look(it, name)) is not None:
            todo.extend((v, name) for v in inner)
            return
        if is_a(it, torch.Tensor):
            if not has_memory(it) or it.is_inference():  # counts no writes
                return
            if (
                it._version > 0
            ):  # written in place at some time; by this window too, if the second run is to do it again
                self._tensor(it, name)
            elif it.numel() * it.element_size() <= MAX_UNCOUNTED:
                self._uncounted.append((it, name))
            return
        if is_a(it, torch.nn.Module):
            for label, tensor in (*it.named_parameters(recurse=False), *it.named_buffers(recurse=False)):
                if id(tensor) not in self._seen:  # written through .data, a tensor's version stays
                    self._seen.add(id(tensor))
                    self._tensor(tensor, label)
            self._buffers(it)
            todo.extend((m, n) for n, m in it.named_children())
        elif is_a(it, tuple):
            todo.extend((v, name) for v in it)
        elif is_a(it, types.FunctionType):
            self._function(it, name, todo)
        elif is_a(it, types.MethodType):
            if channels.is_old_way_in(it):
                self.one_way.append(name)
            todo.append((it.__self__, name))
        elif is_a(it, CONTAINERS) and (kind.__module__ in ("builtins", "collections") or is_users_class(kind)):
            self._container(it, name, todo)
        is_users = is_users_class(kind)
        try:
            state = getattr(it, "__dict__", None)
        except Exception:  # of the code of the program, or a weakref.proxy whose target is gone
            state = None
        if is_a(state, dict) and (is_users or is_a(it, copies.BAGS)):
            left = OF_MODULES if is_a(it, torch.nn.Module) else ()
            own = {k: v for k, v in state.items() if k not in left}
            self._copies.append(lambda: _attributes(state, own, left))
            self._figures.append((copies.OfDict(state), own))
            self._bound.add(kind.__name__, copies.OfDict(state), own)
            self._drawn.held_by(it, own.values())
            todo.extend((v, k) for k, v in own.items())
        if is_users:
            self._held_in(copies.Slots(it, copies.slots_of(it)), it, todo)
            todo.append((kind, kind.__name__))

    def _buffers(self, module):
        """A forward may bind another tensor to a buffer's name instead of writing it."""
        state = module.__dict__.get("_buffers")
        if is_a(state, dict) and (own := dict(state)):  # a scripted module's is none
            self._copies.append(lambda: _update(state, own))
            self._bound.add(type(module).__name__, copies.OfDict(state), own)

    def _held_in(self, place, it, todo):
        """place: slots of an object, or attributes of a class."""
        if values := place.values():
            self._copies.append(lambda: copies.put_back(place, values))
            self._figures.append((place, values))
            self._bound.add(getattr(it, "__name__", type(it).__name__), place, values)
            self._drawn.held_by(it, values.values())
            todo.extend((v, k) for k, v in values.items())

    def _class_or_module(self, it, todo):
        if is_a(it, types.ModuleType):
            if copies.is_of_program(it.__dict__.get("__file__")):
                self._globals(it.__dict__, todo)
        elif copies.is_programs_class(it):
            self._held_in(copies.OfClass(it), it, todo)
            todo.extend((base, base.__name__) for base in it.__bases__)

    def _function(self, it, name, todo):
        for cell in it.__closure__ or ():
            self._cell(cell, name, todo)
        if not copies.is_of_program(it.__code__.co_filename):
            return
        self._globals(it.__globals__, todo)
        todo.extend((v, name) for v in (*(it.__defaults__ or ()), *(it.__kwdefaults__ or {}).values()))
        if state := it.__dict__:
            own = dict(state)
            self._copies.append(lambda: _attributes(state, own, ()))
            self._figures.append((copies.OfDict(state), own))
            self._bound.add(name, copies.OfDict(state), own)
            todo.extend((v, k) for k, v in own.items())

    def _container(self, it, name, todo):
        self._elements += base_of(it).__len__(it)
        if is_a(it, dict):
            copy: Any = dict(dict.items(it))
            self._copies.append(lambda: _dictionary(it, copy))
            self._figures.append((copies.OfDict(it), copy))
            self._bound.add(name, copies.OfDict(it), copy)
            todo.extend((v, str(k)) for k, v in copy.items())
        elif is_a(it, bytearray):
            copy = bytes(it)
            self._copies.append(lambda: _sequence(it, copy))
        elif is_a(it, set):
            copy = set(set.__iter__(it))
            self._copies.append(lambda: set.__ne__(it, copy) and (set.clear(it), set.update(it, copy)))
        else:
            copy = list(base_of(it).__iter__(it))
            self._copies.append(lambda: _sequence(it, copy))
            if is_a(it, list):
                self._lists.append((it, copy))
            todo.extend((v, name) for v in copy)

    def _cell(self, cell, name, todo):
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            return
        if is_a(content, (*PLAIN, type, types.ModuleType)) and id(cell) not in self._seen:
            self._seen.add(id(cell))
            self._copies.append(lambda: setattr(cell, "cell_contents", content))
        todo.append((content, name))

    def _tensor(self, tensor: Tensor, name: str) -> None:
        if not has_memory(tensor) or tensor.is_inference() or tensor.layout is not torch.strided or not tensor.is_leaf:
            return
        size_bytes = tensor.numel() * tensor.element_size()
        fits = self._bytes + size_bytes <= MAX_BYTES
        self._bytes += size_bytes if fits else 0
        self._tensors.append((name, tensor, _native.checksum(tensor), tensor.detach().clone() if fits else None))
        self._versions.append(tensor._version)

    def second_run_begins(self, left: Sequence[rebound_attributes.Left] = ()) -> None:
        """What the snapshot of the window's start put back (buffers) is finite again: the second run begins with it as
        the first did. left: by the step before in places that are re-bound."""
        self._bound.give(left)
        self._back = {
            id(tensor)
            for _, tensor, _, copy in self._tensors
            if copy is not None and not _native.is_finite(copy) and _native.is_finite(tensor)
        }

    def ruined(self) -> list[tuple[str, Tensor]]:
        """(name, tensor) of those that the step writes in place, and that its first run had left non-finite: the second
        began with other values than the first."""
        return [
            (name, tensor)
            for (name, tensor, _, copy), version in zip(self._tensors, self._versions)
            if tensor._version != version
            and copy is not None
            and not _native.is_finite(copy)
            and id(tensor) not in self._back
        ]

    def rebound(self) -> list[tuple[str, Tensor]]:
        """The same of those that objects hold and the step re-binds."""
        return self._bound.ruined()

    def left(self, names: Mapping[int, str]) -> list[rebound_attributes.Left]:
        """What of these the next step begins with, where this one is skipped. Before they are put back."""
        return self._bound.left(names)

    def tensors(self) -> list[Tensor]:
        """Those that a copy was made of."""
        return [tensor for _, tensor, _, _ in self._tensors]

    def written_between_steps(self) -> list[Tensor]:
        """Those that the start of the window does not put back, such as an average of the weights: the code between
        two steps may write them before this step reads them, and would do so once more in a second run."""
        buffers = {id(tensor) for tensor in _native.window_buffers()}
        return [t for _, t, _, copy in self._tensors if copy is not None and id(t) not in buffers]

    def without_copy(self) -> list[str]:
        """Names of those that are too large for one."""
        return [name for name, _, _, copy in self._tensors if copy is None]

    def mend(self) -> None:
        """Tensors that are not finite any more as they were."""
        for _, tensor, _, copy in self._tensors:
            if copy is not None and not _native.is_finite(tensor) and _native.is_finite(copy):
                tensor.data.copy_(copy)

    def counted(self) -> list[tuple[int, int | None, Any]]:
        """What the second run has counted up: [(which, key's number, what it was at the start of the window)], and of
        lists that have grown [(which, None, by how much)]. A step counts the same each time; none is known to be right
        before a run from there has shown it."""
        found: list[tuple[int, int | None, Any]] = []
        for which, (figures, before) in enumerate(self._figures):
            for number, (key, value) in enumerate(before.items()):
                now = figures.get(key)
                if type(value) not in (int, float) or type(now) is not type(
                    value
                ):  # None and names among the figures count nothing
                    continue
                if math.isfinite(now) and math.isfinite(value) and now != value:
                    found.append((which, number, value - (now - value)))
        for which, (it, before) in enumerate(self._lists):
            more = list.__len__(it) - len(before)
            if 0 < more <= len(before) and all(x is y for x, y in zip(list.__iter__(it), before)):
                found.append((which, None, more))
        return found

    def down(self, counted: Iterable[Sequence[Any]]) -> list[Callable[[], Any]]:
        """Functions that count it down from where the first run left it."""
        found: list[Callable[[], Any]] = []
        for which, number, value in counted:
            if number is None:
                it, before = self._lists[which]
                found.append(functools.partial(_shorten, it, len(before), value))
            else:
                figures, before = self._figures[which]
                key = list(before)[number]
                found.append(functools.partial(_count_down, figures, key, before[key], value))
        return found

    def put_back(self) -> list[str]:
        """Everything as it was. Returns the names of tensors that were written and are too large to have a copy of, and
        of what was read from and does not go back."""
        signals.put_back()
        for restore in (*self._copies, *self._generators):
            restore()
        return [*self._drawn.put_back(), *copies.put_tensors_back(self._tensors)]


def _update(names, figures):
    for key, value in figures.items():
        if names.get(key) is not value:
            names[key] = value


def _count_down(figures, key, value, earlier):
    if figures.get(key) == value:  # else it is one of the names that the rewind itself has put back
        figures.set(key, earlier)


def _shorten(it, size, by):
    if list.__len__(it) == size:
        del it[size - by :]


def _attributes(state, own, left):
    for key in [k for k in state if k not in own and k not in left]:
        del state[key]
    _update(state, own)


def base_of(it):
    """The builtin container that it is made of: a subclass may do anything in its own methods, such as loading
    modules."""
    return next(b for b in (collections.OrderedDict, *CONTAINERS) if is_a(it, b))


def _dictionary(it, copy):
    if dict.__len__(it) == len(copy) and all(dict.get(it, k, it) is v for k, v in copy.items()):
        return
    base = base_of(it)
    base.clear(it)
    for key, value in copy.items():
        base.__setitem__(it, key, value)


def _sequence(it, copy):
    base = base_of(it)
    if base.__len__(it) == len(copy) and all(
        x is y or base is bytearray and x == y for x, y in zip(base.__iter__(it), copy)
    ):
        return
    if base is collections.deque:
        base.clear(it)
        base.extend(it, copy)
    else:
        base.__setitem__(it, slice(None), copy)
