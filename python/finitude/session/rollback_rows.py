"""--rollback-skip-rows: the rows of a bad step that training went back from are not drawn again, from the next epoch
on. The iterator that runs keeps its order.

Several ranks skip the same rows, those of all ranks that had a bad value, and only where each gets as many rows as
before, or fewer by the same number: a rank with fewer batches would leave the others waiting."""

from __future__ import annotations

import json
import weakref

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from .. import _native
from ..program import skip_rows
from ..report import named_samples

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..base.types import Alarm

MOST_SHOWN = 8  # rows in a text
INDEXED = 0  # _DatasetKind.Map
MOST_ROWS = 100_000  # that a rank reports to the others
EVEN = DistributedSampler, SequentialSampler, RandomSampler  # without some rows, ranks get equally many
NOT_KNOWN = "its rows are not known, and none are skipped"
UNEVEN = "ranks could be given different numbers of rows"


class SkipsBadRows:
    def __init__(self) -> None:
        # loader -> (its samplers as the program made them, rows that it skips)
        self._skipped: weakref.WeakKeyDictionary[Any, tuple[Any, Any, set[int]]] = weakref.WeakKeyDictionary()

    def skip(self, alarm: Alarm) -> str:
        """Of the step whose window is open: the rows that the alarm names, where its batches have them, else all rows
        of its batches. Returns what is said of it."""
        said = []
        for dataset, ids in _bad_rows(alarm):
            said += [self._skip_in(loader, ids) for loader in _loaders() if loader.dataset is dataset]
        return "; ".join(dict.fromkeys(said)) or NOT_KNOWN

    def of_this_rank(self, alarm: Alarm) -> str:
        """What the others have to know before any rank skips rows: the bad rows here, and data sets of which ranks
        can skip rows and get equally many."""
        rows: dict[str, set[int]] = {}
        if alarm["cause"]["class"] != "other-rank":
            for dataset, ids in _bad_rows(alarm):
                rows.setdefault(_key(dataset), set()).update(ids)
        even: dict[str, bool] = {}
        for loader in _loaders():
            key = _key(loader.dataset)
            even[key] = even.get(key, True) and self._is_even(loader)
        kept = {key: sorted(ids)[:MOST_ROWS] for key, ids in rows.items()}
        return json.dumps({"rows": kept, "even": [key for key, is_even in even.items() if is_even]})

    def skip_same(self, reports: Iterable[str]) -> str:
        """reports: of_this_rank of all ranks. Returns what is said of it, the same on all."""
        found = [json.loads(one) for one in reports]
        rows: dict[str, set[int]] = {}
        for one in found:
            for key, ids in one["rows"].items():
                rows.setdefault(key, set()).update(row for row in ids if type(row) is int)
        said = []
        for key, ids in rows.items():
            if not all(key in one["even"] for one in found):
                said.append(f"no row of {key.partition(' ')[0]} is skipped: {UNEVEN}")
                continue
            said += [self._skip_in(loader, ids) for loader in _loaders() if _key(loader.dataset) == key]
        return "; ".join(dict.fromkeys(said)) or NOT_KNOWN

    def _samplers_of(self, loader):
        """(its samplers as the program made them, rows that it skips)"""
        return self._skipped.get(loader) or (loader.batch_sampler, loader.sampler, set())

    def _is_even(self, loader):
        batches, sampler, _ = self._samplers_of(loader)
        return (batches is None or type(batches) is BatchSampler) and type(sampler) in EVEN

    def _skip_in(self, loader, ids):
        batches, sampler, before = self._samplers_of(loader)
        name, now = type(loader.dataset).__name__, before | ids
        object.__setattr__(loader, "batch_sampler", batches)  # DataLoader's own refuses that of a loader that is made
        object.__setattr__(loader, "sampler", sampler)
        try:
            skip_rows.put_into(loader, now)
        except skip_rows.NotSkipped as e:
            return f"no row of {name} is skipped: {e}"
        self._skipped[loader] = batches, sampler, now
        if loader._iterator is not None:  # of persistent workers: it serves the next epoch too
            loader._iterator._index_sampler = loader._index_sampler
        shown = ", ".join(map(str, sorted(ids)[:MOST_SHOWN])) + (", ..." if len(ids) > MOST_SHOWN else "")
        return f"rows {shown} of {name} are not drawn again"


def _loaders():
    """Those whose data set has rows."""
    return [loader for loader in _native.instances((DataLoader,)) if loader._dataset_kind == INDEXED]


def _key(dataset):
    """The same for what is the same data set on all ranks."""
    return f"{type(dataset).__name__} {len(dataset) if hasattr(dataset, '__len__') else ''}"


def _bad_rows(alarm):
    """(data set, rows) of the window: those that the alarm names, where there are such."""
    named = set(named_samples.of(dict(alarm)))
    return [(dataset, rows & named or rows) for dataset, rows in _drawn()]


def _drawn():
    """(data set, rows) of what each loader's iterator gave the window."""
    found: dict[int, tuple[Any, set[int]]] = {}
    for _, _, indices, _, _, kind, iterator in _native.window_batches():
        rows = [indices] if type(indices) is int else indices
        if kind == "next" and isinstance(rows, (list, tuple)) and all(type(row) is int for row in rows):
            found.setdefault(id(iterator), (iterator._dataset, set()))[1].update(rows)
    return list(found.values())
