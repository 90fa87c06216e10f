"""A bad value that did not come again when the same step was run again: which tensor held it, and whether its bits
show that the memory was something else before."""

from __future__ import annotations

import ast
import ctypes

import torch

from .. import _native
from ..base import sources
from ..program import optimizer_members
from ..program.tensor_stats import count_text
from . import incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..base.types import Alarm, Sink

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # by torch.func
MAX_MB, MAX_FRAMES = 64, 8  # that are looked at
# Bits without the sign, of each NaN that arithmetic makes: its own, and those of bfloat16, float16 and the four float8
# once they are widened. torch's vector code fills what is narrower with ones.
USUAL = (0x7FC00000, 0x7FFF0000, 0x7FFFFFFF, 0x7FF00000, 0x7FE00000, 0x7F800001)
# The same for infinity.
FORMATS = {
    torch.float32: ("uint32", 0x7FFFFFFF, 0x7F800000, USUAL),
    torch.float64: (
        "uint64",
        (1 << 63) - 1,
        0x7FF0 << 48,
        tuple(0x7FF8 << 48 | (bits & 0x7FFFFF) << 29 for bits in USUAL),
    ),
}
FIX = "initialise it (torch.zeros, nn.init, copy_) before the first read"


def note(sinks: Iterable[Sink]) -> list[dict[str, Any]]:
    """What is bad now, before anything is run again: [{name, count, bits, is_single, file, line}], the sinks first,
    then data in the user's names."""
    found = [
        {**_held(name, t), "file": "", "line": 0}
        for kind, name, t in sinks or ()
        if kind in ("parameter", "state", "buffer") and t is not None
    ]
    left = [MAX_MB << 20]
    for number, frame in enumerate(optimizer_members.user_frames()):
        for name, value in optimizer_members.names_of(frame).items() if number < MAX_FRAMES else ():
            if _is_bad_data(value, left):
                found.append({**_held(name, value), **_bound_at(frame, name)})
    return found


def _held(name, tensor):
    return {
        "name": name,
        "count": count_text(tensor),
        "bits": strange_bits(tensor),
        "is_single": tensor.numel() == 1,
    }


def _is_bad_data(value, left):
    """left: bytes that may be read still."""
    # Of a class of the program's own every question may be its code.
    if (
        type(value) is not torch.Tensor
        or _is_wrapped(value)
        or value.requires_grad
        or value.layout is not torch.strided
        or value.device.type != "cpu"
    ):
        return False
    try:
        left[0] -= value.nbytes
        return left[0] >= 0 and not _native.is_finite(value)
    except (RuntimeError, TypeError, NotImplementedError):  # nested ones
        return False


def strange_bits(tensor):
    """The bits of a NaN that no arithmetic of a CPU makes and no program writes as such, in hexadecimal; "" where there
    is none."""
    integer, unsigned, infinity, usual = FORMATS.get(tensor.dtype, ("", 0, 0, ()))
    if not integer or torch.cuda.is_initialized():
        return ""  # a GPU makes others
    try:
        bits = _bits(tensor, integer)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return ""
    size = bits & unsigned
    is_strange = size > infinity
    for known in usual:
        is_strange &= size != known
    strange = bits[is_strange]
    return f"{int(strange[0]):0{bits.itemsize * 2}x}" if strange.size else ""


def _bits(tensor, integer):
    """A view of its memory, for as long as the tensor lives. By no operator, as what runs now may be recorded; and not
    as a NumPy array of torch, which forbids the program to resize the storage."""
    import numpy

    if not tensor.numel() or not tensor.data_ptr():
        return numpy.zeros(0, integer)
    width = tensor.element_size()
    strides = [stride * width for stride in tensor.stride()]
    size = width + sum((n - 1) * stride for n, stride in zip(tensor.shape, strides))
    memory = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return numpy.ndarray(tuple(tensor.shape), integer, memory, 0, tuple(strides))


def _bound_at(frame, name):
    """Where the name was given what it holds: the last such statement above the line that runs."""
    file, first, line = frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lineno
    try:
        tree = ast.parse("".join(sources.lines(file)))
    except (SyntaxError, ValueError):
        return {"file": "", "line": 0}
    binds = [
        n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == name
    ]
    above = [n for n in binds if first <= n <= line]
    return {"file": file, "line": max(above)} if above else {"file": "", "line": 0}


def add_to(alarm: Alarm, noted: list[dict[str, Any]]) -> None:
    """Into the cause of an alarm whose step came out finite when it was run again."""
    cause = alarm["cause"]
    if not noted or cause["class"] not in ("unknown", "corrupted-state"):
        return
    if alarm["rerun"] != "transient":
        if cause["class"] == "corrupted-state" and noted[0]["bits"] and noted[0]["name"] == alarm["sink"]["name"]:
            cause["text"] += (
                f"; or memory that nobody had written: no arithmetic makes the bits of its NaN ({noted[0]['bits']})"
            )
        return
    # NaN keeps its bits through arithmetic. A single number is nearly always a result, and not the memory itself.
    strange = sorted((n for n in noted if n["bits"]), key=lambda n: n["is_single"])
    held = strange[0] if strange else noted[0]
    bits = f" with bits that no arithmetic makes ({held['bits']})" if held["bits"] else ""
    if cause["class"] == "corrupted-state":
        text = (
            f"{held['name']} held {held['count']}{bits} before any step was taken, and was finite "
            "when the program was run again from its "
            "start: no checkpoint or initial value would be, memory that nobody had written is"
        )
    elif bits and held["is_single"]:
        text = (
            "the step came out finite when it was run again; the first time "
            f"{held['name']} held {held['count']}{bits}: it was computed from memory that nobody had written over"
        )
        alarm["cause"] = incident.cause("uninitialised-memory", text, "possible")
        alarm["fix"] = {"text": FIX, "verified": False, "file": "", "line": 0}
        return
    elif bits:
        text = (
            f"the step came out finite when it was run again; the first time {held['name']} held "
            f"{held['count']}{bits}: what was in that "
            "memory before, and nobody had written over"
        )
        alarm["births"] = [{**incident.birth("memory", "", held["file"], held["line"]), "name": held["name"]}]
    else:
        cause["text"] += f"; the first time {held['name']} held {held['count']}"
        return
    alarm["cause"] = incident.cause("uninitialised-memory", text, "likely" if bits else "possible")
    alarm["fix"] = {"text": FIX, "verified": False, "file": held["file"], "line": held["line"]}
