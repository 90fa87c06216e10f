"""Which sample of a batch one of its rows is. A collate function of the program's own may sort them (by length, to be
packed), or leave some out: what the sampler gave in which order is not the order of the rows then. The samples are
taken out of the data set again and put together one by one; a row is the sample that looks as it does."""

from __future__ import annotations

import functools
import sys
import time
import types

import torch

from .. import _native
from ..base.kinds import is_a
from ..effects import copies
from ..effects.files import HeldFiles
from ..effects.object_snapshot import Ledger
from ..effects.output_suppression import Quiet
from ..program import optimizer_members, sinks as sinks_of
from . import bad_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

    from ..base.types import Source, Tensor

MAX_SAMPLES = 512  # of a batch whose rows do not identify the sample
MAX_SECONDS = 10.0  # for taking samples out of the data set again


class Aside:
    """What calling the program's data set once more changes: said, drawn, written; put back at the end."""

    def __enter__(self):
        self.generators = _native.take_generators()
        owned = {id(p): p for o in sinks_of.watched_optimizers() for p in optimizer_members.parameters(o)}
        self.ledger = Ledger(sys._getframe(), owned.values(), sinks_of.watched_optimizers())
        self.quiet, self.files = Quiet(), HeldFiles()
        return self

    def __exit__(self, *_: object) -> None:
        self.files.end()
        self.quiet.end()
        self.ledger.put_back()
        self.generators.restore()
        optimizer_members.moved()


def taken(dataset: Any, index: Any) -> Any:
    own = getattr(type(dataset), "__getitems__", None)
    if own is not None and not type(dataset).__module__.startswith("torch."):
        return dataset.__getitems__([index])[0]
    return dataset[index]


def leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) as the engine names them: batch[0][image]."""
    if is_a(value, torch.Tensor):
        yield path, value
    elif depth < bad_values.MAX_DEPTH:
        for key, part in bad_values.parts(value):
            yield from leaves(part, f"{path}[{key}]", depth + 1)


def dimension(tensor: Tensor, count: int) -> int | None:
    """Which one counts the samples of the batch; None where that is not known."""
    if tensor.shape[:1] == (count,):
        return 0
    return list(tensor.shape).index(count) if sum(s == count for s in tensor.shape) == 1 else None


def _may_reorder(collate):
    """Is it the program's own? Those of libraries keep the order, and so does torch's."""
    while isinstance(collate, functools.partial):
        collate = collate.func
    function = getattr(collate, "__func__", collate)
    if isinstance(function, types.FunctionType):
        return copies.is_of_program(function.__code__.co_filename)
    return copies.is_programs_class(type(collate))


def _same(row, one):
    """Of a row and of the sample alone. One that was padded to a longer one's length is the same and, behind that, one
    value."""
    if row.dim() != one.dim() or row.dtype != one.dtype:
        return False
    common = tuple(slice(0, min(a, b)) for a, b in zip(row.shape, one.shape))
    a, b = row[common], one[common]
    if not bool(((a == b) | (a != a) & (b != b)).all()):
        return False
    for whole in (row, one):
        rest = torch.ones(whole.shape, dtype=torch.bool)
        rest[common] = False
        beyond = whole[rest]
        if beyond.numel() and not bool((beyond == beyond[0]).all()):
            return False
    return a.numel() > 0 or row.numel() == one.numel()


def _is_row(batch, row, single, count):
    """Is this row of the batch what the sample alone was put together to?"""
    compared = 0
    alone = dict(leaves(single, "batch"))
    for path, tensor in leaves(batch, "batch"):
        dim, one = dimension(tensor, count), alone.get(path)
        if (
            dim is None
            or one is None
            or tensor.layout is not torch.strided
            or one.dim() != tensor.dim()
            or one.shape[dim] != 1
        ):
            continue
        if not _same(tensor.detach().select(dim, row), one.detach().select(dim, 0)):
            return False
        compared += 1
    return compared > 0


class _Positions:
    def __init__(self, dataset, collate, indices, batch):
        self.dataset, self.collate, self.indices, self.batch = dataset, collate, indices, batch
        self.samples, self.singles, self.until = {}, {}, time.monotonic() + MAX_SECONDS

    def sample(self, position: int) -> Any:
        if position not in self.samples:
            if time.monotonic() > self.until:
                raise TimeoutError("a slow data set")
            self.samples[position] = taken(self.dataset, self.indices[position])
        return self.samples[position]

    def single(self, position):
        if position not in self.singles:
            self.singles[position] = self.collate([self.sample(position)])
        return self.singles[position]

    def is_at(self, batch, row, position):
        return _is_row(batch, row, self.single(position), len(self.indices))

    def of(self, rows: Collection[int]) -> dict[int, int]:
        """{row: position in the sampler's list} of those for which it is known."""
        found = {row: row for row in rows if self.is_at(self.batch, row, row)}
        for row in set(rows) - set(found):
            at = [p for p in range(len(self.indices)) if self.is_at(self.batch, row, p)]
            if len(at) == 1:
                found[row] = at[0]
        if len(found) < len(set(rows)):
            found.update(self._as_now(set(rows) - set(found)))
        return found

    def _as_now(self, rows):
        """Samples that draw random numbers are others now: is the order kept where these are put together?"""
        before = _native.take_generators()
        together = self.collate([self.sample(p) for p in range(len(self.indices))])
        if not _native.take_generators() == before:
            return {}
        return {row: row for row in rows if self.is_at(together, row, row)}


def positions(source: Source, rows: Collection[int]) -> dict[int, int]:
    """source: as of step_start_state.take_samples. {row: position in the list that the sampler gave} of those of these
    rows for which it is known. In an Aside."""
    iterator, batch, indices, _ = source
    dataset, collate = getattr(iterator, "_dataset", None), getattr(iterator, "_collate_fn", None)
    if (
        not isinstance(indices, (list, tuple))
        or not callable(collate)
        or not _may_reorder(collate)
        or not hasattr(type(dataset), "__getitem__")
    ):
        return {row: row for row in rows}
    if len(indices) > MAX_SAMPLES:
        return {}
    try:
        return _Positions(dataset, collate, list(indices), batch).of(rows)
    except Exception:  # of a slow data set, or a collate function that takes no single sample: then it is not known
        return {}


def reorders(source: Source) -> bool:
    """Need it be asked?"""
    return callable(collate := getattr(source[0], "_collate_fn", None)) and _may_reorder(collate)
