"""The batches of the first steps in the order that loaders give them."""

from __future__ import annotations

import hashlib
import weakref

import torch

from . import measure
from .measure import place, tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .wiring import Wiring

MAX_BATCHES, MAX_SEEDS, FEW_ROWS = 2000, 1000, 4


class Batches:
    def __init__(self, facts: dict[str, Any], wiring: Wiring):
        self.facts: dict[str, Any] = {"given": [], "seeds": []}
        facts["batches"] = self.facts
        self.wiring = wiring
        self.passes: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self.count = 0
        self.loaders: dict[int, int] = {}  # id of what draws the samples of a loader -> its number
        self.alive: list[Any] = []  # keeps those ids from being reused

    def begins(self, iterator: Any) -> None:
        """A pass over a loader; one with persistent workers uses its iterator again."""
        self.count += 1
        self.passes[iterator] = [self.count, 0]

    def given(self, iterator: Any, batch: Any, indices: Sequence[Any]) -> None:
        if iterator not in self.passes:
            self.begins(iterator)
        state = self.passes[iterator]
        source = iterator._index_sampler
        if id(source) not in self.loaders:
            self.alive.append(source)
        loader = self.loaders.setdefault(id(source), len(self.loaders))
        order = hashlib.blake2b(repr(list(indices)).encode(), digest_size=8).hexdigest() if len(indices) else ""
        tensors = list(tensors_of(batch, "batch"))
        size = _size(iterator._dataset)
        for _, t in tensors:
            self.wiring.flow.tag(t, ("loader", loader, size, order))
        if len(self.facts["given"]) < MAX_BATCHES:
            self.facts["given"].append(
                {
                    "loader": loader,
                    "pass": state[0],
                    "position": state[1],
                    "batches": _size(source),
                    "samples": size,
                    "shuffles": _shuffles(source),
                    "workers": iterator._num_workers,
                    "iterable": isinstance(iterator._dataset, torch.utils.data.IterableDataset),
                    "order": order,
                    "rows": len(indices),
                    "distinct": len(set(map(repr, indices))),
                    "bits": " ".join(measure.fingerprint(t) for _, t in tensors[:16]),
                    "same_rows": any(_same_rows(t) for _, t in tensors),
                    "steps": self.wiring.steps,
                    "at": place(),
                }
            )
        state[1] += 1

    def seeded(self, value: Any) -> None:
        if len(self.facts["seeds"]) < MAX_SEEDS:
            self.facts["seeds"].append({"value": str(value)[:40], "steps": self.wiring.steps, "at": place()})


def _size(sized):
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return 0


def _shuffles(batches):
    sampler = getattr(batches, "sampler", batches)
    samplers = torch.utils.data
    if isinstance(sampler, samplers.distributed.DistributedSampler):
        return bool(sampler.shuffle)
    return isinstance(sampler, (samplers.RandomSampler, samplers.SubsetRandomSampler))


def _same_rows(tensor):
    """Floating-point rows that are all the same, and not of one value."""
    if not measure.has_memory(tensor) or not tensor.is_floating_point() or tensor.dim() < 2:
        return False
    rows = tensor.detach().reshape(tensor.shape[0], -1)
    if rows.shape[0] < FEW_ROWS or rows.shape[1] < FEW_ROWS:
        return False
    return bool((rows == rows[:1]).all()) and not bool((rows[0] == rows[0, 0]).all())
