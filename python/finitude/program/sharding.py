"""The part of a DTensor that this rank holds, and its place in the whole."""

from __future__ import annotations

import sys

import torch

from .. import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Tensor


def is_sharded(kind: type) -> bool:
    """Is it the class of DTensors?"""
    return kind.__name__ == "DTensor"


def is_plain(value: Any) -> bool:
    """A tensor of which this process holds all."""
    return isinstance(value, torch.Tensor) and not is_sharded(type(value))


def local_part(tensor: Tensor) -> Tensor:
    """The memory of this rank; of a plain tensor the tensor itself. Waits for a functional collective operation that
    makes the part, as the next operation that reads it would."""
    detached = tensor.detach()
    local = getattr(detached, "_local_tensor", detached)
    wait: Any = getattr(local, "wait", None) if type(local).__name__ == "AsyncCollectiveTensor" else None
    return _native.local_of(wait() if wait else local)


def copied(tensor: Tensor) -> Tensor:
    """A clone. That of a DTensor is made of its local part: torch may begin clone() of one that is partial with a
    collective operation, in which the other ranks take no part."""
    if is_plain(tensor):
        return tensor.clone()
    from torch.distributed.tensor import DTensor

    of: Any = tensor
    local = local_part(tensor).clone()
    return DTensor.from_local(local, of.device_mesh, of.placements, run_check=False, shape=of.shape, stride=of.stride())


def part_text(tensor: Tensor) -> str:
    """ ", in [4:8, 0:4] of 8 x 4": the part of a DTensor that this rank holds; "" where that is all of it."""
    found, local = place(tensor), local_part(tensor).shape
    if "begins" not in found or list(local) == found["full_shape"]:
        return ""
    spans = ", ".join(f"{begin}:{begin + size}" for begin, size in zip(found["begins"], local))
    return f", in [{spans}] of {' x '.join(map(str, found['full_shape']))}"


def place(tensor: Tensor) -> dict[str, Any]:
    """`full_shape`, `begins` (indices of the first element of the part in the whole) and `is_partial` (the whole is a
    sum over ranks). Empty for a plain tensor, and where torch does not say."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    utils: Any = sys.modules.get("torch.distributed.tensor._utils")
    if mesh is None or utils is None:
        return {}
    placements: Any = tensor.placements  # type: ignore[attr-defined]
    found: dict[str, Any] = {"full_shape": list(tensor.shape)}
    partial = [placement for placement in placements if placement.is_partial()]
    if partial:  # others are means, largest values or norms
        is_sum = all(type(one).__name__ == "Partial" and getattr(one, "reduce_op", "") == "sum" for one in partial)
        return {**found, "is_partial": True} if is_sum else found
    try:
        shape, begins = utils.compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    except (AttributeError, TypeError, NotImplementedError):
        return {}
    return {**found, "begins": list(begins)} if 0 not in shape else found
