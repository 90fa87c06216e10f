"""Objects of known kinds, each copied so that it can be put back in place: random generators, arrays, slots,
classes."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import random
import sys
import threading
import types

import torch

from .. import _native
from ..base._places import is_library
from ..base.kinds import is_a

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..base.types import Tensor

BAGS = (
    types.SimpleNamespace,
    argparse.Namespace,
    threading.local,
    collections.ChainMap,
    collections.UserDict,
    collections.UserList,
)


def is_of_program(file: str | None) -> bool:
    """Is this file the program's own, and not a library's?"""
    return file is not None and not is_library(file) and "site-packages" not in file and "dist-packages" not in file


def is_programs_class(kind: type) -> bool:
    return kind.__module__ == "__main__" or is_of_program(getattr(sys.modules.get(kind.__module__), "__file__", None))


def random_or_array(it: Any, room: int) -> tuple[Callable[[], Any], int] | None:
    """A function that puts a random generator or an array back, and how many bytes it holds; None for anything else.
    room: how many it may hold."""
    if is_a(it, random.Random) and not is_a(it, random.SystemRandom):
        state: Any = it.getstate()
        return (lambda: it.setstate(state)), 0
    if is_a(it, torch.Generator):
        state = it.get_state()
        return (lambda: it.set_state(state)), 0
    if is_a(it, array.array):
        copy = it[:]
        return (lambda: _array(it, copy)), len(it) * it.itemsize
    if is_a(it, contextvars.ContextVar):
        value = it.get(it)  # itself: it has none
        return (lambda: value is it or it.get(it) is value or it.set(value)), 0
    ctypes, numpy = sys.modules.get("_ctypes"), sys.modules.get("numpy")
    if type(it).__module__ == "multiprocessing.sharedctypes" and hasattr(it, "get_obj"):
        it = it.get_obj()
    if ctypes is not None and is_a(it, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
        return _memory(it, room)
    if numpy is None:
        return None
    if is_a(it, numpy.random.Generator):
        bits, state = it.bit_generator, it.bit_generator.state
        return (lambda: setattr(bits, "state", state)), 0
    if is_a(it, numpy.random.RandomState):
        state = it.get_state()
        return (lambda: it.set_state(state)), 0
    if not is_a(it, numpy.ndarray) or not it.flags.writeable or it.nbytes > room:
        return None
    copy = it.copy()
    return (lambda: numpy.copyto(it, copy)), it.nbytes


def _array(it, copy):
    if it != copy:
        it[:] = copy


def _memory(it, room):
    view = memoryview(it).cast("B")
    if view.nbytes > room:
        return None
    copy = bytes(view)

    def back():
        if view != copy:
            view[:] = copy

    return back, view.nbytes


def slots_of(it: Any) -> dict[str, Any]:
    """{name: descriptor} of the slots that the classes of the program gave it."""
    return {
        name: value
        for kind in type(it).__mro__
        if "__slots__" in kind.__dict__ and is_programs_class(kind)
        for name, value in kind.__dict__.items()
        if is_a(value, types.MemberDescriptorType)
    }


def _is_bound(slot, it):
    try:
        slot.__get__(it)
        return True
    except AttributeError:
        return False


def put_back(place: Slots | OfClass | OfDict, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if place.get(name) is not value:
            place.set(name, value)


class Slots:
    """The slots of an object as a dict would hold them."""

    def __init__(self, it: Any, slots: dict[str, Any]):
        self._it, self._slots = it, slots

    def owner(self) -> int:
        return id(self._it)

    def get(self, name: str) -> Any:
        try:
            return self._slots[name].__get__(self._it)
        except AttributeError:
            return None

    def set(self, name: str, value: Any) -> None:
        self._slots[name].__set__(self._it, value)

    def values(self) -> dict[str, Any]:
        return {name: slot.__get__(self._it) for name, slot in self._slots.items() if _is_bound(slot, self._it)}


class OfClass:
    """The attributes of a class that are no methods of it."""

    def __init__(self, kind: type):
        self._kind = kind

    def owner(self) -> int:
        return id(self._kind)

    def get(self, name: str) -> Any:
        return self._kind.__dict__.get(name)

    def set(self, name: str, value: Any) -> None:
        type.__setattr__(self._kind, name, value)

    def values(self) -> dict[str, Any]:
        return {k: v for k, v in self._kind.__dict__.items() if not (k.startswith("__") and k.endswith("__"))}


class OfDict:
    """The attributes or names in a dict, or what it holds."""

    def __init__(self, state: dict[Any, Any]):
        self._state = state

    def owner(self) -> int:
        return id(self._state)

    def get(self, name: Any) -> Any:
        return dict.get(self._state, name)

    def set(self, name: Any, value: Any) -> None:
        dict.__setitem__(self._state, name, value)


def put_tensors_back(held: Iterable[tuple[str, Tensor, int, Tensor | None]]) -> list[str]:
    """held: (name, tensor, its checksum then, its copy or None). Names of those that are not as they were and have no
    copy."""
    lost = []
    for name, tensor, checksum, copy in held:
        if _native.checksum(tensor) == checksum:
            continue
        if copy is None:
            lost.append(name)
        else:
            tensor.data.copy_(copy)
    return lost
