"""From which parameters and batches each tensor of the first steps was computed, and where autograd lost a parameter.

Keyed by storages, so a view has what its base has. A weak reference keeps the address of a storage from being reused,
not its memory. Nothing here holds a tensor. Called in one thread at a time (look.py)."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .measure import place, tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..base.types import Tensor

MAX_STORAGES, MAX_TAGS, MAX_CUTS = 200_000, 64, 32
# Their derivative is zero wherever it is defined.
FLAT = frozenset(f"aten::{name}{end}" for name in ("round", "sign", "floor", "ceil", "trunc") for end in ("", "_"))
# A class of the script's own named Sign has a node "SignBackward", without the number.
FLAT_NODES = frozenset(f"{n}Backward{i}" for n in ("Round", "Sign", "Floor", "Ceil", "Trunc") for i in (0, 1))


class Origin:
    """Of one storage. parameters: a bit for each leaf whose values are in it. tags: batches, permutations and modules
    that it came through. made: the operation that did; operation, at: where the gradient of what is computed
    from it would end. cuts: (bits, operation, (file, line)), where autograd has no way on to these leaves."""

    __slots__ = ("weak", "parameters", "tags", "cuts", "made", "operation", "at")

    def __init__(self, weak: Any, operation: str, at: tuple[str, int]):
        self.weak, self.made = weak, operation
        self.operation, self.at = operation, at
        self.parameters: int = 0
        self.tags: frozenset[Any] = frozenset()
        self.cuts: tuple[tuple[int, str, tuple[str, int]], ...] = ()


class Flow:
    def __init__(self) -> None:
        self.origins: dict[int, Origin] = {}
        self.bits: dict[int, int] = {}  # the key of a leaf's storage -> its bit
        self.flat: dict[str, tuple[str, int]] = {}  # FLAT operations of the forward pass, and where they were called

    def _known_or_new(self, tensor: Tensor, operation: str, at: tuple[str, int]) -> Origin | None:
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return None
        try:
            weak = StorageWeakRef(tensor.untyped_storage())
        except (RuntimeError, NotImplementedError):
            return None  # a wrapper without a storage
        found = self.origins.get(weak.cdata)
        if found is None:
            if len(self.origins) >= MAX_STORAGES:
                return None
            found = self.origins[weak.cdata] = Origin(weak, operation, at)
        return found

    def of(self, tensor: Tensor) -> Origin | None:
        """What is known of a tensor; enters a leaf that takes part in training."""
        found = self._known_or_new(tensor, "", ("", 0))
        if found is not None and tensor.is_leaf and tensor.requires_grad:
            bit = self.bits.setdefault(found.weak.cdata, 1 << len(self.bits))
            if not found.parameters & bit:
                found.parameters, found.cuts = bit, ()
        return found

    def bit_of(self, parameter: Tensor) -> int:
        found = self.of(parameter)
        return self.bits.get(found.weak.cdata, 0) if found else 0

    def tag(self, tensor: Tensor, *tags: Any) -> None:
        if (found := self.of(tensor)) and len(found.tags) < MAX_TAGS:
            found.tags |= set(tags)

    def tags(self, values: Any) -> frozenset[Any]:
        found = [self.of(t) for _, t in tensors_of(values)]
        return frozenset().union(*(one.tags for one in found if one))

    def operation(self, name: str, args: Any, out: Any) -> None:
        """One operation of a forward pass, after it."""
        at = place()
        given = [(t, self.of(t)) for _, t in tensors_of(args)]
        if name in FLAT and any(t.requires_grad for t, _ in given):
            self.flat.setdefault(name.removeprefix("aten::").removesuffix("_"), at)
        parameters, tags, cuts = 0, set(), {}
        for tensor, one in given:
            if one is None:
                continue
            parameters |= one.parameters
            tags |= one.tags
            cuts.update(dict.fromkeys(one.cuts))
            if name == "aten::detach" and tensor.requires_grad:
                one.operation, one.at = name, at  # where the gradient ends if this view is what is computed with
            elif one.parameters and not tensor.requires_grad:
                cuts[(one.parameters, one.operation, one.at)] = None
        if name == "aten::randperm":
            tags.add(("permutation", len(self.origins), int(args[0][0])))
        if name == "aten::detach":
            return
        for _, tensor in tensors_of(out):
            new = self._known_or_new(tensor, name, at)
            if new is None or new.weak.cdata in self.bits:  # a write into a parameter leaves it that parameter
                continue
            new.parameters |= parameters
            if len(tags) <= MAX_TAGS:
                new.tags |= tags
            new.cuts = tuple(dict.fromkeys((*new.cuts, *cuts)))[:MAX_CUTS]

    def cut(self, roots: Iterable[Tensor], bit: int) -> tuple[str, tuple[str, int]] | None:
        """(operation, place) after which the roots have the values of this leaf and no gradient for it. None: they
        do not have them."""
        for root in roots:
            found = self.of(root)
            if found is None or not found.parameters & bit:
                continue
            for bits, operation, at in found.cuts:
                if bits & bit and at[0]:
                    return operation, at
            return found.operation, found.at
        return None

    def forget(self) -> None:
        """After a step: what is no longer in memory."""
        for key in [k for k, one in self.origins.items() if one.weak.expired()]:
            del self.origins[key]
            self.bits.pop(key, None)


def leaves(roots: Iterable[Tensor], through_flat: bool = True) -> list[Tensor]:
    """The leaves that a backward from these roots gives a gradient. through_flat=False: not those behind an operation
    whose derivative is zero."""
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [r.grad_fn for r in roots if r.grad_fn is not None]
    seen: set[Any] = set()
    for root in roots:
        if root.grad_fn is None and root.requires_grad:
            found[id(root)] = root
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name()
        if not through_flat and name in FLAT_NODES:
            continue
        variable = getattr(node, "variable", None)
        if variable is not None and name == "torch::autograd::AccumulateGrad":
            found[id(variable)] = variable
        waiting.extend(n for n, _ in node.next_functions)
    return list(found.values())
