"""Samplers that leave out rows of a data set, and the rule for which loaders get one."""

from __future__ import annotations

import bisect
import collections
import copy
import os

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
)

from ..base import skip_list
from ..base.say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Any

    from ..base.skip_list import Skipped

MOST_DEPTH = 8  # of samplers that hold samplers
MOST_PASSES = 1000  # of a sampler that draws rows again, over those that may be drawn


class NotSkipped(ValueError):
    """No sampler can leave these rows out, and why."""


class SkippingSampler(Sampler):
    """Gives what another sampler gives, without some rows. The order is that of the other one."""

    def __init__(self, sampler: Any, ids: Iterable[int]):
        """ids: rows of the data set."""
        self.sampler, self.ids = sampler, frozenset(ids)
        # It draws some rows of all, or one more than once: others come in place of those that are skipped.
        self._draws = bool(getattr(sampler, "replacement", False)) or (
            isinstance(sampler, RandomSampler) and sampler.num_samples != len(sampler.data_source)
        )

    @property
    def data_source(self) -> Any:
        return dataset_of(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        if not self._draws:
            yield from (one for one in self.sampler if one not in self.ids)
            return
        left = len(self.sampler)
        for _ in range(MOST_PASSES):
            for one in self.sampler:
                if one in self.ids:
                    continue
                yield one
                left -= 1
                if not left:
                    return

    def __len__(self) -> int:
        """Of a sampler of the program's own: as if it gave each row once."""
        length = len(self.sampler)
        if self._draws:
            return length
        if isinstance(self.sampler, SubsetRandomSampler):
            return sum(one not in self.ids for one in self.sampler.indices)
        return length - sum(one < length for one in self.ids)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)


class _Sized:
    def __init__(self, length):
        self.length = length

    def __len__(self) -> int:
        return self.length


class DistributedSkippingSampler(Sampler):
    """Gives each rank its share of the rows that are left: as many to each, as DistributedSampler does of a data set
    that has no others. Seed and epoch are those of the sampler that it replaces, when it is iterated."""

    def __init__(self, sampler: Any, ids: Iterable[int]):
        self.sampler = sampler
        self.ids = frozenset(ids)
        kept = sorted(one for one in self.ids if one < len(sampler.dataset))
        self._left = len(sampler.dataset) - len(kept)
        self._before = [one - position for position, one in enumerate(kept)]

    @property
    def data_source(self) -> Any:
        return self.sampler.dataset

    def _inner(self):
        of = self.sampler
        made = DistributedSampler(
            _Sized(self._left),  # type: ignore[arg-type]
            of.num_replicas,
            of.rank,
            of.shuffle,
            of.seed,
            of.drop_last,
        )
        made.set_epoch(of.epoch)
        return made

    def __iter__(self) -> Iterator[int]:
        for position in self._inner():
            yield position + bisect.bisect_right(self._before, position)

    def __len__(self) -> int:
        return len(self._inner())

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)


class SkippingBatches(Sampler):
    """The same of a sampler of batches that has no sampler of rows: rows of later batches fill the places up, and the
    last batches are shorter or fewer."""

    def __init__(self, batches: Any, ids: Iterable[int]):
        self.batch_sampler, self.ids = batches, frozenset(ids)
        self.batch_size = getattr(batches, "batch_size", None)
        self.drop_last = getattr(batches, "drop_last", False)

    @property
    def data_source(self) -> Any:
        return dataset_of(self.batch_sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        held: list[Any] = []
        sizes: collections.deque[int] = collections.deque()
        for batch in self.batch_sampler:
            rows = list(batch)
            sizes.append(len(rows))
            held += [one for one in rows if one not in self.ids]
            while sizes and len(held) >= sizes[0]:
                size = sizes.popleft()
                yield held[:size]
                del held[:size]
        if held and not self.drop_last:
            yield held

    def __len__(self) -> int:
        """As if each row were given once, in batches of one size."""
        count = len(self.batch_sampler)
        if not self.batch_size:
            return count
        left = max(0, count * self.batch_size - len(self.ids))
        return left // self.batch_size if self.drop_last else -(-left // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.batch_sampler, "set_epoch"):
            self.batch_sampler.set_epoch(epoch)


_OBEYS = (SkippingSampler, DistributedSkippingSampler, SkippingBatches)


def dataset_of(sampler: Any) -> Any:
    """The data set that a sampler gives rows of; None where it does not say."""
    for _ in range(MOST_DEPTH):
        for name in ("data_source", "dataset"):
            if (found := getattr(sampler, name, None)) is not None:
                return found
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
        if sampler is None:
            return None
    return None


def _obeys(sampler):
    for _ in range(MOST_DEPTH):
        if sampler is None or isinstance(sampler, _OBEYS):
            return sampler is not None
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
    return False


def _of_sampler(sampler, ids, gives_batches):
    if type(sampler) is DistributedSampler:
        return DistributedSkippingSampler(sampler, ids)
    if isinstance(sampler, DistributedSampler):
        raise NotSkipped(f"{type(sampler).__name__} could give ranks different numbers of rows")
    if type(sampler) is BatchSampler:
        wrapped = copy.copy(sampler)
        wrapped.sampler = _of_sampler(sampler.sampler, ids, False)
        return wrapped
    return SkippingBatches(sampler, ids) if gives_batches else SkippingSampler(sampler, ids)


def put_into(loader: Any, ids: Iterable[int]) -> None:
    """The loader draws these rows no more, from its next iteration on. Raises NotSkipped."""
    if loader.batch_sampler is None:  # it gives single rows
        _set(loader, "sampler", _of_sampler(loader.sampler, ids, False))
        return
    wrapped = _of_sampler(loader.batch_sampler, ids, True)
    _set(loader, "batch_sampler", wrapped)
    if type(wrapped) is BatchSampler:
        _set(loader, "sampler", wrapped.sampler)


def _set(loader, name, value):
    object.__setattr__(loader, name, value)  # DataLoader's own refuses that of a loader that is made


def _length(dataset):
    try:
        return len(dataset)
    except TypeError:
        return None


def _ids_for(dataset, given):
    """Rows of a list, or those that a file has of that data set."""
    if not isinstance(given, (str, os.PathLike)):
        return frozenset(int(one) for one in given)
    lists = skip_list.read(given)
    if dataset is None:
        if len(lists) != 1:
            raise NotSkipped(f"the sampler does not say of which data set it is, and the file names {len(lists)}")
        return frozenset(lists[0].ids)
    name, length = type(dataset).__name__, _length(dataset)
    return frozenset(one for found in lists if found.is_of(name, length) for one in found.ids)


def skip_rows(sampler: Any, rows: str | os.PathLike[str] | Collection[int]) -> Any:
    """A sampler that gives what `sampler` gives, without some rows: in the same order, in batches of the same size.

    sampler: a Sampler, a BatchSampler or a DistributedSampler, which is not changed; or a DataLoader with one, which
    then draws these rows no more, and is returned. rows: their indices in the data set, or the path of a skip list
    (`finitude rows --skip-list`), of which those of this data set hold: the one with its class and length. Raises
    ValueError where the list cannot be read, names a row that the data set does not have, or no sampler can obey it;
    OSError where there is no such file. Call it before the sampler is iterated."""
    is_loader = isinstance(sampler, DataLoader)
    dataset = sampler.dataset if is_loader else dataset_of(sampler)
    ids = _ids_for(dataset, rows)
    if unknown := _unknown(ids, _length(dataset)):
        raise ValueError(f"finitude.skip_rows: {unknown}")
    if not is_loader:
        return _of_sampler(sampler, ids, isinstance(sampler, BatchSampler) or hasattr(sampler, "batch_size"))
    if sampler.batch_sampler is None and not isinstance(sampler.sampler, Sampler):
        raise NotSkipped("the loader has no sampler of indices")
    put_into(sampler, ids)
    return sampler


def _unknown(ids, length):
    """Of rows that the data set does not have: what is said of them."""
    if length is None:
        return ""
    beyond = sorted(one for one in ids if not 0 <= one < length)
    if not beyond:
        return ""
    named = ", ".join(map(str, beyond[:5])) + (", ..." if len(beyond) > 5 else "")
    return f"it has {length} rows, and no row {named}"


class SkipsRows:
    """What `--skip-rows FILE` does to the loaders that the program makes."""

    def __init__(self, path: str, lists: Sequence[Skipped], quiet: bool):
        self._path, self._lists, self._quiet = path, lists, quiet
        self._said: set[str] = set()

    def begin(self) -> None:
        """Says what is skipped."""
        counts = [len(one.ids) for one in self._lists]
        rows = (
            ", ".join(f"{n} row{'s' * (n != 1)} of {one.dataset}" for n, one in zip(counts, self._lists)) or "no rows"
        )
        are = "is" if sum(counts) == 1 else "are"
        if not self._quiet:
            say(f"finitude: --skip-rows {self._path}: {rows} {are} skipped\n")

    def wrapped(self, original: Callable[..., None]) -> Callable[..., None]:
        """In place of DataLoader.__init__."""

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            self.made(loader)

        __init__.__wrapped__ = original  # type: ignore[attr-defined]
        return __init__

    def made(self, loader: Any) -> None:
        """Of a loader that was just made: its sampler obeys the list from here on."""
        dataset = loader.dataset
        name = type(dataset).__name__
        of_class = [one for one in self._lists if one.dataset == name]
        if not of_class or loader._dataset_kind != 0 or _obeys(loader.batch_sampler) or _obeys(loader.sampler):
            return
        length = _length(dataset)
        ids = frozenset(row for one in of_class if one.is_of(name, length) for row in one.ids)
        if not any(one.is_of(name, length) for one in of_class):
            self._say(f"a data set {name} has {length} rows, and the list is of one with {of_class[0].length}")
            return
        if unknown := _unknown(ids, length):
            self._say(f"{name}: {unknown}")
        try:
            put_into(loader, ids)
        except NotSkipped as e:
            self._say(f"{name}: no row of it is skipped: {e}")

    def _say(self, text):
        if text not in self._said:
            self._said.add(text)
            say(f"finitude: error: --skip-rows: {text}\n")
