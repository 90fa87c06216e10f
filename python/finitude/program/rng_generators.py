"""The streams of random numbers of the program's own: torch.Generator, numpy's Generator and RandomState,
random.Random.

What a step draws from them it draws again in a second run only if they are as they were when the window began: the
engine takes the state of each that is known here with every window. Looked for where the program gets its optimizer,
when one is bound to a name of the user's frames, and, to compare what two runs have drawn, at a bad step."""

from __future__ import annotations

import collections
import ctypes
import gc
import random
import sys
import types

import torch

from .. import _native
from ..base._places import is_library
from ..base.kinds import is_a
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Optimizer

MOST = 256  # streams; capsules hold no more
MOST_OBJECTS = 20_000  # looked at in one search
MOST_ELEMENTS = 1_000  # of one container
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
PLAIN = (int, float, complex, str, bytes, type, type(None), types.ModuleType, torch.Tensor)
LOADING = "torch.utils.data"  # what is handed to a loader or a sampler stays the program's
_NUMPY = ("numpy.random._pcg64", "numpy.random._mt19937", "numpy.random._philox", "numpy.random._sfc64")

_watched_in = 0  # the backward pass in which optimizers have stepped for the first time, one after the other
_tried = {}  # class of numpy's: does its memory go back; RandomState: where in it its second normal number lies


def watch(known: list[Any], optimizer: Optimizer | None = None) -> list[Any]:
    """Those that there are now are part of every snapshot. known: generators of the program's own so far; returns them
    with those that have come. optimizer: whose GPUs are looked at too."""
    global _watched_in
    if optimizer is not None:
        _native.watch_device_generators(optimizer_members.device_generators(optimizer))
        inside, before = _native.backward_under_way(), _watched_in
        _watched_in = inside
        if inside and inside == before:
            return known  # each parameter has one: there are hundreds, and what the program reaches is the same
    found = _reached()
    own = {id(it): it for it in found if is_a(it, torch.Generator)}
    first = {id(it): it for it in known if id(it) in own}  # a capsule has them in the order in which they were met
    known = list({**first, **own}.values())
    _native.watch_generators(known)
    streams = [(it, where, is_a(it, random.Random)) for it in found if (where := regions(it)) is not None]
    _native.watch_streams((_global() + streams)[:MOST])
    return known


class Streams:
    """The generators of the program's own that are part of every snapshot."""

    def __init__(self):
        self.generators: list[Any] = []

    def look(self, optimizer: Optimizer | None = None) -> None:
        """For those that have come. optimizer: whose GPUs are looked at too."""
        self.generators = watch(self.generators, optimizer)


def sums() -> list[int | str]:
    """Of the state of every stream that the program reaches now, in the order of the search: what two runs compare that
    have drawn the same numbers."""
    return [_native.generators_sum(), *(_sum(it) for it in _reached())]


def _sum(it):
    if is_a(it, torch.Generator):
        return _native.checksum(it.get_state()) if it.device.type == "cpu" else it.get_state().tolist()
    if is_a(it, random.Random):
        return hash(it.getstate())
    state = it.bit_generator.state if hasattr(it, "bit_generator") else it.get_state(legacy=False)
    return repr({key: value.tolist() if hasattr(value, "tolist") else value for key, value in _flat(state)})


def _flat(state, prefix=""):
    for key, value in state.items():
        if is_a(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _global():
    """What the engine's own snapshot of random and numpy.random lacks: the second of a pair of normal numbers, and
    numpy's whole generator where it is no Mersenne Twister."""
    found = [(random._inst, (), True)]
    numpy = sys.modules.get("numpy")
    state = getattr(getattr(getattr(numpy, "random", None), "mtrand", None), "_rand", None)
    if state is not None and (where := regions(state)) is not None:
        found.append((state, where if type(state._bit_generator).__name__ != "MT19937" else where[1:], False))
    return found


# -- where they are -----------------------------------------------------------------------------


def _is_stream(it):
    kind = type(it)  # not isinstance, for which some objects answer themselves
    if issubclass(kind, torch.Generator):
        return it is not torch.default_generator and it.device.type == "cpu"
    if issubclass(kind, random.Random):
        return it is not random._inst and not issubclass(kind, random.SystemRandom)
    kinds: Any = getattr(sys.modules.get("numpy"), "random", None)
    if not hasattr(kinds, "Generator"):
        return False
    return issubclass(kind, (kinds.Generator, kinds.RandomState)) and it is not getattr(
        getattr(kinds, "mtrand", None), "_rand", None
    )


def _reached():
    """From the frames of the user's code, through the program's own objects."""
    found, seen, todo = [], set(), collections.deque()
    for frame in optimizer_members.user_frames():
        todo.extend(optimizer_members.names_of(frame).values())
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            todo.extend(list(frame.f_globals.values()))
    todo.extend(_native.running_iterators())
    kept = []  # ids are those of living objects
    while todo and len(kept) < MOST_OBJECTS and len(found) < MOST:
        it = todo.popleft()
        if id(it) in seen or issubclass(type(it), PLAIN):
            continue
        seen.add(id(it))
        kept.append(it)
        if _is_stream(it):
            found.append(it)
        else:
            todo.extend(_inside(it))
    return found


def _inside(it):
    """What of the program's it holds."""
    kind = type(it)
    if (
        base := next((b for b in CONTAINERS if issubclass(kind, b)), None)
    ) is not None:  # a subclass may do anything in its own methods
        values = dict.values if base is dict else base.__iter__
        inner = list(values(it)) if base.__len__(it) <= MOST_ELEMENTS else []
    elif is_a(it, types.FunctionType):
        inner = [c.cell_contents for c in it.__closure__ or () if _is_full(c)] + list(it.__defaults__ or ())
    elif is_a(it, types.MethodType):
        return [it.__self__]
    elif is_a(it, types.GeneratorType):
        frame = it.gi_frame
        # One that runs is a frame around us; what a library's draws from is between it and the program.
        if frame is None or it.gi_running or is_library(frame.f_code.co_filename):
            return []
        drawn = (r for r in (*gc.get_referents(it), *gc.get_referents(frame)) if hasattr(type(r), "__next__"))
        return [*optimizer_members.names_of(frame).values(), *drawn]
    elif kind.__module__ in ("builtins", "itertools", "functools"):
        return optimizer_members.referents(it) if hasattr(kind, "__next__") or kind.__name__ == "partial" else []
    else:
        inner = []
    if kind.__module__.startswith(LOADING) or is_a(it, torch.nn.Module) or optimizer_members.is_users_class(kind):
        inner += optimizer_members.held_by(it)
    return inner


def _is_full(cell):
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


# -- which bytes they are -----------------------------------------------------------------------


def regions(it):
    """((address, bytes), ...) of its state, or None where that is not known or did not pass the trial."""
    try:
        if is_a(it, random.Random):
            # struct RandomObject of CPython: int index, uint32 state[624], behind the object's header
            return (
                ((id(it) + object.__basicsize__, 625 * 4),)
                if _goes_back(random.Random, lambda: random.Random(5))
                else None
            )
        if is_a(it, torch.Generator):
            return None
        bits = it._bit_generator if hasattr(it, "_bit_generator") else it.bit_generator
        if type(bits).__module__ not in _NUMPY or not _goes_back(type(bits), lambda: type(bits)(5)):
            return None
        second = (
            _second_normal(type(it)) if hasattr(it, "_bit_generator") and not hasattr(it, "bit_generator") else None
        )
        if second is None:
            return (_tail(bits),)
        # struct aug_bitgen of numpy: int has_gauss, double gauss
        return (_tail(bits), (id(it) + second - 8, 16)) if second else None
    except (AttributeError, TypeError, ValueError, ImportError):
        return None


def _tail(bits):
    """A bit generator of numpy's keeps its state behind all else, at the end of its object."""
    kind, address = type(bits), bits.ctypes.state_address
    end = id(bits) + kind.__basicsize__
    if not id(bits) < address < end:
        raise ValueError("the state is not part of the object")
    return address, end - address


def _goes_back(kind, make):
    """Are these bytes the whole state? Two draws from them, on an object that is made for it, say so."""
    if kind not in _tried:
        _tried[kind] = False
        it = make()
        if is_a(it, random.Random):
            where, draw = (id(it) + object.__basicsize__, 625 * 4), lambda: [it.random() for _ in range(700)]
        else:
            from numpy.random import Generator

            numbers = Generator(it)
            where = _tail(it)
            draw = lambda: [  # noqa: E731
                *numbers.standard_normal(700).tolist(),
                *numbers.integers(0, 9, 701, "uint32").tolist(),
                *numbers.integers(0, 9, 31, "uint8").tolist(),
            ]
        draw()
        before = ctypes.string_at(*where)
        first = draw()
        ctypes.memmove(where[0], before, len(before))
        _tried[kind] = draw() == first
    return _tried[kind]


def _second_normal(kind):
    """Where in a RandomState the second of a pair of normal numbers lies, found by one that is known; 0: not found."""
    if kind not in _tried:
        it = kind(5)
        it.standard_normal()
        state = it.get_state(legacy=False)
        memory = ctypes.string_at(id(it), kind.__basicsize__)
        at = memory.find(bytes(ctypes.c_double(state["gauss"])))
        is_it = state["has_gauss"] == 1 and at >= 8 and int.from_bytes(memory[at - 8 : at - 4], sys.byteorder) == 1
        _tried[kind] = at if is_it else 0
    return _tried[kind]
