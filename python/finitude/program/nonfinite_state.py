"""Parameters and optimizer state that are not finite."""

from __future__ import annotations

import torch
from torch.utils.weak import TensorWeakRef

from .. import _native
from ..base.kinds import is_a
from ..base.unseen import unseen
from . import optimizer_members, step_wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Optimizer, Sink, Tensor

_unused = {}  # id(parameter) -> (weak reference, checksum) of those that held NaN or Inf and had no gradient at first


@unseen
def note_unused(optimizer: Optimizer) -> None:
    """The first step comes. A parameter without a gradient may hold what is not finite, as a mask does. An optimizer
    outside torch.optim may write it all the same."""
    for p in optimizer_members.parameters(optimizer):
        if p.grad is None and not _native.is_finite(p):
            _unused[id(p)] = TensorWeakRef(p), _native.checksum(p)


def _is_frozen(parameter):
    return not parameter.requires_grad and parameter.grad is None


def is_result(optimizer: Optimizer, parameter: Tensor) -> bool:
    """False for a parameter without a gradient that no step of this optimizer has written: torch.optim skips those.
    One that can get a gradient must also hold the bits of the first step, since a loop may clear all gradients."""
    if parameter.grad is not None:
        return True
    noted, checksum = _unused.get(id(parameter), (lambda: None, None))
    if noted() is parameter and _native.checksum(parameter) == checksum:
        return False
    return not (_is_frozen(parameter) and step_wrapper.is_torchs(type(optimizer)))


def sinks(optimizer: Optimizer, allowed: Sequence[Tensor]) -> list[Sink]:
    """(kind, name, tensor) of every parameter and state tensor that holds NaN or Inf. Empty where only state overflowed
    to Inf: such a parameter no longer moves, and nothing is ruined. allowed: parameters that may hold such values."""
    found = everything(optimizer, allowed)
    return [] if only_overflowed(found) else found


def everything(optimizer: Optimizer, allowed: Sequence[Tensor]) -> list[Sink]:
    found: list[Sink] = []
    named = list(zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)))
    for name, p in named:
        if not _native.is_finite(p) and not any(p is a for a in allowed) and is_result(optimizer, p):
            found.append(("parameter", name, p))
    for name, p in named:
        if step_wrapper.is_torchs(type(optimizer)) and _is_frozen(p):
            continue
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key, value in (state or {}).items():
            if is_a(value, torch.Tensor) and not _native.is_finite(value):
                found.append(("state", f"{name}.{key}", value))
    return found


def only_overflowed(found: list[Sink]) -> bool:
    return bool(found) and all(
        kind == "state" and (s := _native.statistics(t)) and not s["nan"] for kind, _, t in found
    )
