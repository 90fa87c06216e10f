"""--rollback-skip-rows: the rows of a bad step that training went back from are not drawn again, from the next epoch
on. The iterator that runs keeps its order."""

from __future__ import annotations

import weakref

from torch.utils.data import DataLoader

from .. import _native
from ..program import skip_rows
from ..report import named_samples

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Alarm

MOST_SHOWN = 8  # rows in a text
INDEXED = 0  # _DatasetKind.Map


class SkipsBadRows:
    def __init__(self) -> None:
        # loader -> (its samplers as the program made them, rows that it skips)
        self._skipped: weakref.WeakKeyDictionary[Any, tuple[Any, Any, set[int]]] = weakref.WeakKeyDictionary()

    def skip(self, alarm: Alarm) -> str:
        """Of the step whose window is open: the rows that the alarm names, where its batches have them, else all rows
        of its batches. Returns what is said of it."""
        named = set(named_samples.of(dict(alarm)))
        said = []
        for iterator, rows in _drawn():
            ids = rows & named or rows
            dataset = iterator._dataset
            for loader in _native.instances((DataLoader,)):
                if loader.dataset is dataset and loader._dataset_kind == INDEXED:
                    said.append(self._skip_in(loader, iterator, ids))
        return "; ".join(dict.fromkeys(said)) or "its rows are not known, and none are skipped"

    def _skip_in(self, loader, iterator, ids):
        batches, sampler, before = self._skipped.get(loader) or (loader.batch_sampler, loader.sampler, set())
        name, now = type(loader.dataset).__name__, before | ids
        object.__setattr__(loader, "batch_sampler", batches)  # DataLoader's own refuses that of a loader that is made
        object.__setattr__(loader, "sampler", sampler)
        try:
            skip_rows.put_into(loader, now)
        except skip_rows.NotSkipped as e:
            return f"no row of {name} is skipped: {e}"
        self._skipped[loader] = batches, sampler, now
        if loader._iterator is iterator:  # of persistent workers: it serves the next epoch too
            iterator._index_sampler = loader._index_sampler
        shown = ", ".join(map(str, sorted(ids)[:MOST_SHOWN])) + (", ..." if len(ids) > MOST_SHOWN else "")
        return f"rows {shown} of {name} are not drawn again"


def _drawn():
    """(iterator of a loader, rows) of what the window was given."""
    found: dict[int, tuple[Any, set[int]]] = {}
    for _, _, indices, _, _, kind, iterator in _native.window_batches():
        rows = [indices] if type(indices) is int else indices
        if kind == "next" and isinstance(rows, (list, tuple)) and all(type(row) is int for row in rows):
            found.setdefault(id(iterator), (iterator, set()))[1].update(rows)
    return list(found.values())
