"""What is read off a tensor, as plain numbers, and where in the user's program we are."""

from __future__ import annotations

import hashlib
import math
import os
import sys

import torch

from .. import _native
from ..base import _places
from ..program.sharding import local_part
from ..program.state_format import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType
    from typing import Any

    from ..base.types import Optimizer, Tensor

HALF_NORMAL = 6.103515625e-05  # the smallest normal float16
SAMPLE = 1 << 20  # elements of a gradient whose small values are counted
HASHED = 1 << 20  # bytes of a batch that its fingerprint is made of
_STEP_FILE = sys.modules["torch.optim.optimizer"].__file__
FEW = 4  # values of a row below which it says nothing that they are all equal


def place() -> tuple[str, int]:
    """(file, line) of the innermost frame of the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _places.is_library(frame.f_code.co_filename):
            return os.path.abspath(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back
    return "", 0


def is_inner_step(optimizer: Optimizer) -> bool:
    """Is it the step of a base class, called by that of a subclass? torch calls its hooks around both."""
    frame: FrameType | None = sys._getframe(1)
    around = 0
    while frame is not None and around < 2:
        code = frame.f_code
        around += (
            code.co_name == "wrapper" and code.co_filename == _STEP_FILE and frame.f_locals.get("self") is optimizer
        )
        frame = frame.f_back
    return around > 1


def dtype(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def statistics(t: Tensor) -> dict[str, Any] | None:
    """Counts and range of a tensor as plain numbers, of a DTensor those of the part of this rank; None for one without
    memory to read."""
    t = local_part(t)
    if t.device.type not in ("cpu", "meta"):
        t = t.cpu()
    if t.is_floating_point() or t.is_complex():
        s = _native.statistics(t)
        return {**s, "finite": s["numel"] - s["nan"] - s["inf"]} if s else None
    if t.device.type == "meta" or t.layout != torch.strided or not t.numel():
        return None
    return {"min": float(t.min()), "max": float(t.max()), "nan": 0, "inf": 0, "numel": t.numel(), "finite": t.numel()}


def rms(s: dict[str, Any]) -> float:
    """Of the finite values that statistics() has counted."""
    return (s["sum_sq"] / max(s["finite"], 1)) ** 0.5


def tensors_of(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) in nested containers."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < 6:
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, (list, tuple))
            else vars(value).items()
            if hasattr(value, "__dataclass_fields__")
            else ()
        )
        for key, item in items:
            yield from tensors_of(item, f"{name}.{key}" if name else str(key), depth + 1)


def has_memory(t: Tensor) -> bool:
    """Are there elements to read? Wrapped, fake, nested, sparse and meta tensors have none, or not here; FSDP2 frees
    the memory of parameters that it has gathered."""
    if t.layout != torch.strided or t.device.type == "meta" or t.is_nested:
        return False
    try:
        if local_part(t).data_ptr() == 0 and t.numel():
            return False
    except (RuntimeError, NotImplementedError):
        return False
    return True


def fingerprint(t: Tensor) -> str:
    """Equal for equal bytes; "" where there are none to read."""
    if not has_memory(t):
        return ""
    head = local_part(t).flatten()[: HASHED // max(t.element_size(), 1)].cpu().contiguous()
    return hashlib.blake2b(content(head) + repr(tuple(t.shape)).encode(), digest_size=8).hexdigest()


def batch(name: str, t: Tensor, indices: Sequence[Any]) -> dict[str, Any] | None:
    """A tensor of a batch: range, the rows that are not finite or all of one value, its fingerprint, its samples. None:
    not to be read."""
    if not has_memory(t):
        return None
    one = {
        "name": name,
        "dtype": dtype(t),
        "shape": list(t.shape),
        "numel": t.numel(),
        "at": place(),
        "nan": 0,
        "inf": 0,
        "min": None,
        "max": None,
        "rows": [],
        "constant_rows": [],
        "fingerprint": fingerprint(t),
        "indices": [],
    }
    if indices and t.dim() and t.shape[0] == len(indices):
        one["indices"] = [i if isinstance(i, int) else str(i)[:100] for i in indices[:4096]]
    if not (s := statistics(t)):
        return one if not t.numel() else None
    one.update({k: s[k] for k in ("nan", "inf", "min", "max")})
    if t.dim() < 1 or not t.numel() or not (t.is_floating_point() or t.is_complex()):
        return one
    t = local_part(t)
    rows = t.reshape(t.shape[0], -1)
    if s["nan"] or s["inf"]:
        one["rows"] = (~torch.isfinite(rows).all(dim=1)).nonzero().flatten().tolist()[:64]
    if t.dim() > 1 and rows.shape[1] >= FEW:
        one["constant_rows"] = (rows == rows[:, :1]).all(dim=1).nonzero().flatten().tolist()[:64]
    return one


def parameter(name: str, p: Tensor, scale: float) -> dict[str, Any]:
    """A parameter and its gradient. scale: the gradient was computed times this."""
    s = statistics(p)
    one = {
        "name": name,
        "dtype": dtype(p),
        "shape": list(p.shape),
        "numel": p.numel(),
        "rms": rms(s) if s else None,
        "bad": s["numel"] - s["finite"] if s else 0,
        "grad": None,
    }
    g = p.grad
    if g is None or g.layout != torch.strided or not (s := statistics(g)):
        return one
    flat = local_part(g).flatten()[:SAMPLE].double().abs()
    small = (flat > 0) & (flat * scale < HALF_NORMAL)
    one["grad"] = {
        "dtype": dtype(g),
        "bits": fingerprint(g),
        "zero": s["zero"],
        "numel": s["numel"],
        "nan": s["nan"],
        "inf": s["inf"],
        "norm": math.sqrt(s["sum_sq"]),
        "rms": rms(s),
        "absmax": s["absmax"],
        "tiny": int(small.sum()) / max(flat.numel(), 1),
    }
    return one
