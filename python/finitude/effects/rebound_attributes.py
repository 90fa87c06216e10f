"""Tensors that objects of the program hold in attributes, slots and containers, and which of them another one has taken
the place of: an average of its own, `self.mean = 0.9 * self.mean + ...`.

What was there when the step began is gone by then, and only an alarm asks: a healthy step pays nothing."""

from __future__ import annotations

import torch

from .. import _native
from ..base.kinds import is_a
from ..program.optimizer_members import has_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ..base.types import Tensor
    from .copies import OfClass, OfDict, Slots

MAX_KEPT = 16 << 20  # bytes of what a step has left, held for the next


def _parts(value):
    """(number, tensor) of a tensor, or of a tuple or list of some: a hidden state has several."""
    parts = value if type(value) in (tuple, list) else (value,)
    return [(i, v) for i, v in enumerate(parts[:64]) if is_a(v, torch.Tensor)]


def _is_bad(tensor):
    return has_memory(tensor) and not _native.is_finite(tensor)


class Left:
    """What a bad step has bound to a place that each step re-binds."""

    def __init__(self, name: str, place: OfDict | Slots | OfClass, key: Any, value: Any):
        self.name, self._place, self._key, self._value = name, place, key, value
        self.tensors = [v for _, v in _parts(value)]
        self._versions = [v._version for v in self.tensors if not v.is_inference()]

    def where(self) -> tuple[int, Any]:
        return self._place.owner(), self._key

    def put(self) -> bool:
        """There again, as it was left. False: it has been written since."""
        if self._versions != [v._version for v in self.tensors if not v.is_inference()]:
            return False
        self._place.set(self._key, self._value)
        return True


class Bound:
    def __init__(self) -> None:
        self._held: list[tuple[str, OfDict | Slots | OfClass, Any, Any]] = []
        self._given: set[tuple[int, Any]] = set()

    def add(self, owner: str, place: OfDict | Slots | OfClass, values: Mapping[Any, Any]) -> None:
        """What a place holds. owner: the name of its class, or ""."""
        for key, value in values.items():
            if _parts(value):
                self._held.append((f"{owner}.{key}" if owner else str(key), place, key, value))

    def give(self, left: Sequence[Left]) -> None:
        """The second run begins with what is known to have been there when the first did."""
        here = {(place.owner(), key): (place, key, value) for _, place, key, value in self._held}
        for one in left:
            if one.where() in here and one.put():
                self._given.add(one.where())

    def _rebound(self) -> Iterator[tuple[str, OfDict | Slots | OfClass, Any, Any, Any]]:
        for name, place, key, value in self._held:
            if (now := place.get(key)) is not value:
                yield name, place, key, value, now

    def ruined(self) -> list[tuple[str, Tensor]]:
        """(name, tensor) of what the first run had bound and left non-finite, where the second has bound another one:
        it began with that, unless it was given what the first began with."""
        return [
            (name, tensor)
            for name, place, key, value, _ in self._rebound()
            if (place.owner(), key) not in self._given
            for _, tensor in _parts(value)
            if _is_bad(tensor)
        ]

    def left(self, names: Mapping[int, str]) -> list[Left]:
        """What of that the first run leaves behind, and the second has come to as well: of the same shape and
        non-finite too, as no next batch is. names: id of a tensor -> what it is called."""
        found, size = [], 0
        for name, place, key, value, now in self._rebound():
            then, again = dict(_parts(value)), dict(_parts(now))
            bad = [i for i, t in then.items() if _is_bad(t)]
            if not bad or not all(
                i in again
                and (again[i].shape, again[i].dtype) == (then[i].shape, then[i].dtype)
                and _is_bad(again[i])
                and _native.batch_origin(then[i]) is None
                for i in bad
            ):
                continue
            size += sum(t.nbytes for t in then.values())
            if size <= MAX_KEPT:
                found.append(Left(names.get(id(now), name), place, key, value))
        return found
