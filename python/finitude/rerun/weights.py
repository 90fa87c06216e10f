"""What optimizers own, as it was when a step was stopped. A window begins where its optimizer stepped last, and what
the program itself writes into parameters or optimizer state after that (its own decay, noise, Lookahead) is in them
when the step is stopped: a second run from the start of the window begins with it, and writes it once more."""

from __future__ import annotations

import torch

from .. import _native
from ..base.kinds import is_a
from ..effects import copies
from ..program import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Optimizer


def _owned(optimizers):
    """(name, tensor): all parameters first, then optimizer state. A tensor that several share comes once."""
    seen, state = set(), []
    for optimizer in optimizers:
        for name, p in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
            if id(p) not in seen:
                seen.add(id(p))
                yield name, p
            held = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
            if isinstance(held, dict):
                state.extend((f"{name}.{key}", value) for key, value in held.items())
    for name, value in state:
        if is_a(value, torch.Tensor) and id(value) not in seen:
            seen.add(id(value))
            yield name, value


class Weights:
    """budget: bytes of copies. What does not fit is watched by its checksum alone, and stays as the second run leaves
    it."""

    def __init__(self, optimizers: Sequence[Optimizer], budget: int):
        self._held = []  # (name, tensor, checksum, copy or None)
        with torch.no_grad():
            for name, tensor in _owned(optimizers):
                if tensor.is_inference() or tensor.layout is not torch.strided:
                    continue
                size = tensor.numel() * tensor.element_size()
                fits = size <= budget
                budget -= size if fits else 0
                self._held.append((name, tensor, _native.checksum(tensor), tensor.detach().clone() if fits else None))

    def all_fit(self) -> bool:
        """Was a copy made of each?"""
        return all(copy is not None for _, _, _, copy in self._held)

    def changed(self) -> list[str]:
        """Names of what is not as it was."""
        return [name for name, tensor, before, _ in self._held if _native.checksum(tensor) != before]

    def put_back(self) -> list[str]:
        """Names of what is not as it was and could not be made so."""
        with torch.no_grad():
            return copies.put_tensors_back(self._held)
