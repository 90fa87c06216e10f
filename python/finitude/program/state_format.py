"""The form in which objects of a program are stored beside a capsule: tensors by name, all else as JSON.
docs/format/capsule.md."""

from __future__ import annotations

import collections.abc
import ctypes
import json
import math

import torch

from .. import _native
from ..base.kinds import is_a
from . import sharding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ..base.types import Tensor

MAX_DEPTH, MAX_ITEMS, MAX_TEXT = 6, 4096, 65536
DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


def as_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a file of that format. The dtypes are those of DTYPES."""
    return safetensors((name, DTYPES[t.dtype], t.shape, content(t)) for name, t in tensors.items())


def safetensors(tensors: Iterable[tuple[str, str, Sequence[int], bytes]]) -> bytes:
    """The same of (name, word for the dtype, shape, content)."""
    header, parts, at = {}, [], 0
    for name, word, shape, data in tensors:
        header[name] = {"dtype": word, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return b"".join((len(head).to_bytes(8, "little"), head, *parts))


def _is_plain(tensor):
    """Whether its elements lie in memory one after the other, as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class Tensors:
    """Tensors by name, to be written; what each is, for the text beside them."""

    def __init__(self):
        self.files, self.specs = [], {}

    def add(self, name: str, tensor: Tensor) -> str | None:
        """The name under which it is found again; None where it cannot be kept."""
        word = DTYPES.get(tensor.dtype)
        if word is None or tensor.layout != torch.strided or tensor.device.type == "meta":
            return None
        try:
            local = _native.local_of(tensor).detach()
            plain = local.resolve_conj().resolve_neg().cpu().contiguous()
            plain.data_ptr()
        except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
            return None
        if not _is_plain(local):
            name = f"ordered.{name}"  # the tape has what lies in memory, in the order in which it does
        if name not in self.specs:
            self.specs[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            if place := sharding.place(tensor):
                self.specs[name]["part"] = {
                    "shape": list(local.shape),
                    "begins": place.get("begins"),
                    "is_partial": place.get("is_partial", False),
                }
            self.files.append((name, word, plain))
        return name

    def add_taped(self, kind: str, name: str, tensor: Tensor) -> str | None:
        """The name under which a tensor that the tape reads is found there, as the recorded step began; None where its
        memory holds it in another order, or among others."""
        local = _native.local_of(tensor).detach()
        if (
            DTYPES.get(local.dtype) is None
            or local.layout != torch.strided
            or not _is_plain(local)
            or local.untyped_storage().nbytes() != local.numel() * local.element_size()
        ):
            return None
        _native.tape_name(tensor, kind, name)
        self.specs[f"{kind}.{name}"] = {"dtype": str(local.dtype).removeprefix("torch."), "shape": list(local.shape)}
        return f"{kind}.{name}"

    def add_bytes(self, name: str, data: bytes) -> str | None:
        return self.add(name, torch.frombuffer(bytearray(data), dtype=torch.uint8))


def content(tensor: Tensor) -> bytes:
    """Its bytes, element by element; none where they cannot be had. Not as a NumPy array of torch: that forbids the
    program to resize the storage, as FSDP2 does."""
    try:
        plain = _native.local_of(tensor).detach().resolve_conj().resolve_neg().cpu().contiguous()
        address = plain.data_ptr() if plain.numel() else 0  # 0 also where FSDP2 has freed it
        return ctypes.string_at(address, plain.numel() * plain.element_size()) if address else b""
    except (RuntimeError, NotImplementedError):
        return b""


def plain_value(value: Any) -> bool | int | float | str | None:
    """Numbers and texts as JSON has them; None for others."""
    if is_a(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    if is_a(value, float) and not math.isfinite(value):
        return None
    return value if is_a(value, (bool, int, float, str)) else None


def _scalar(value):
    """The same of one number or text, or None. JSON has no NaN."""
    if is_a(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    return (
        {"value": value}
        if value is None or is_a(value, (bool, int, float, str)) and len(str(value)) <= MAX_TEXT
        else None
    )


class NotKept(Exception):
    """The class of what has no form here."""


def whole(value: Any, name: str, tensors: Tensors | None, depth: int = 0) -> dict[str, Any]:
    """The form of a value that is made again from it alone, without one to be like: tensor, list, tuple, dict, value,
    float. All of it or nothing: may raise NotKept. tensors: None where it is to have none."""
    if is_a(value, torch.Tensor):
        if tensors is not None and (key := tensors.add(name, value)):
            return {"tensor": key}
    elif type(value) in (list, tuple) and depth < MAX_DEPTH and len(value) <= MAX_ITEMS:
        return {type(value).__name__: [whole(item, f"{name}.{i}", tensors, depth + 1) for i, item in enumerate(value)]}
    elif (
        type(value) is dict
        and depth < MAX_DEPTH
        and len(value) <= MAX_ITEMS
        and all(type(key) in (str, int) for key in value)
    ):
        return {"dict": [[key, whole(item, f"{name}.{key}", tensors, depth + 1)] for key, item in value.items()]}
    elif (value is None or type(value) in (bool, int, float, str)) and (found := _scalar(value)) is not None:
        return found
    raise NotKept(type(value).__name__)


def tree(value: Any, name: str, tensors: Tensors, depth: int = 0) -> dict[str, Any]:
    """The form of a batch. A dict of one key, which says what it is: tensor, array, list, dict, object, value,
    other."""
    if is_a(value, torch.Tensor):
        key = tensors.add(name, value)
        return {"tensor": key} if key else {"other": type(value).__name__}
    if (plain := _scalar(value)) is not None:
        return plain
    if type(value).__module__ == "numpy" and hasattr(value, "__array_interface__") and hasattr(value, "ndim"):
        try:
            key = tensors.add(name, torch.as_tensor(value))
        except (TypeError, ValueError, RuntimeError):
            key = None
        return {"array": key} if key else {"other": type(value).__name__}
    if depth < MAX_DEPTH:
        if is_a(value, (tuple, list)) and len(value) <= MAX_ITEMS:
            return {"list": [tree(item, f"{name}.{i}", tensors, depth + 1) for i, item in enumerate(value)]}
        if is_a(value, collections.abc.Mapping) and len(value) <= MAX_ITEMS:
            return {
                "dict": [
                    [key if is_a(key, (str, int)) else str(key), tree(item, f"{name}.{key}", tensors, depth + 1)]
                    for key, item in value.items()
                ]
            }
        if (
            is_a(getattr(value, "__dict__", None), dict)
            and not is_a(value, (type, torch.nn.Module))
            and not callable(value)
        ):
            return {
                "object": [[key, tree(item, f"{name}.{key}", tensors, depth + 1)] for key, item in vars(value).items()],
                "class": type(value).__name__,
            }
    return {"other": type(value).__name__}
