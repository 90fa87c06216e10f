"""Parameters that are, or should be, one."""

from __future__ import annotations

import weakref

import torch

from ..program.sharding import local_part
from . import measure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..base.types import Module, Tensor

MAX_FACTS, SMALLEST = 200, 64  # elements below which equal values say nothing


class Ties:
    def __init__(self, facts: dict[str, Any]):
        self.facts = facts
        facts.update(ties=[], untied=[], copies=[])
        self.pairs: list[tuple[Any, Any, dict[str, Any]]] = []

    def before(self, named: Sequence[dict[str, Any]], parameters: Sequence[Tensor], models: Iterable[Module]) -> None:
        """Before the first step of an optimizer. named: facts of its parameters."""
        seen: dict[Any, str] = {}
        names = {id(p): one["name"] for one, p in zip(named, parameters)}
        for p in parameters:
            if not measure.has_memory(p) or not p.numel():
                continue
            key = (p.device, local_part(p).data_ptr(), p.numel())
            if key in seen and len(self.facts["ties"]) < MAX_FACTS:
                self.facts["ties"].append([seen[key], names[id(p)]])
            seen.setdefault(key, names[id(p)])
        for model in models:
            self._enter_untied(model)
            self._enter_copies(model, names)

    def _enter_untied(self, model):
        """By the interface that models of transformers have."""
        config = getattr(model, "config", None)
        given, made = (getattr(model, f"get_{which}_embeddings", None) for which in ("input", "output"))
        if getattr(config, "tie_word_embeddings", False) is not True or not callable(given) or not callable(made):
            return
        one, other = (getattr(layer, "weight", None) for layer in (given(), made()))
        is_pair = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape
        if is_pair and one is not other:
            self.facts["untied"].append({"module": type(model).__name__})

    def _enter_copies(self, model, names):
        tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding) and id(m.weight) in names]
        layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and id(m.weight) in names]
        for table in tables:
            for layer in layers:
                one, other = local_part(table.weight), local_part(layer.weight)
                is_pair = one is not other and one.shape == other.shape and one.numel() >= SMALLEST
                if not is_pair or not measure.has_memory(one) or one.data_ptr() == other.data_ptr():
                    continue
                if torch.equal(one, other) and bool((one != one.flatten()[0]).any()):
                    pair = table.weight, layer.weight
                    fact = {"embedding": names[id(pair[0])], "layer": names[id(pair[1])], "numel": one.numel()}
                    self.pairs.append((weakref.ref(pair[0]), weakref.ref(pair[1]), fact))

    def over(self) -> None:
        """After a step: which pairs differ by now."""
        self.facts["copies"] = []
        for one, other, fact in self.pairs[:MAX_FACTS]:
            a, b = one(), other()
            if a is not None and b is not None:
                self.facts["copies"].append({**fact, "differ": not torch.equal(local_part(a), local_part(b))})
