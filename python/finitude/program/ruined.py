"""Parameters and optimizer state that are not finite."""

import torch

from .. import _native
from . import discover


def sinks(session, optimizer):
    """(kind, name, tensor) of every parameter and state tensor that holds NaN or Inf. Empty where only state overflowed
    to Inf: such a parameter stands still, and nothing is ruined."""
    found = everything(session, optimizer)
    return [] if only_overflowed(found) else found


def everything(session, optimizer):
    found = []
    named = list(zip(discover.names(optimizer), discover.parameters(optimizer)))
    for name, p in named:
        if not _native.is_finite(p) and not any(p is a for a in session.allowed_tensors):
            found.append(("parameter", name, p))
    for name, p in named:
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key, value in (state or {}).items():
            if isinstance(value, torch.Tensor) and not _native.is_finite(value):
                found.append(("state", f"{name}.{key}", value))
    return found


def only_overflowed(found):
    return bool(found) and all(kind == "state" and not _native.statistics(t)["nan"] for kind, _, t in found)
