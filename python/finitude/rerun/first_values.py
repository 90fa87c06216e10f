"""Had anybody written the memory with which the first step begins? Asked of a value that was bad by then, and where the
first steps are bad in a way that such memory explains (unwritten_memory.py).

The second process fills all memory that it is handed with a byte of our own (glibc does that when asked).
What still holds that byte as the first step begins was written by nobody, and what it held in the first
run was left there by whoever used that memory before.
"""

from __future__ import annotations

import ctypes

import torch

from .. import _native
from ..base.kinds import is_a
from ..program import optimizer_members
from ..report import incident
from .restart_ranks import FILL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Findings, Optimizer, Order, Tensor

_HANDED_OUT = FILL ^ 0xFF  # as floats of any size both are finite
_BLOCK = 16
_SAMPLE = 1 << 12
_MOST_NAMED = 3


def _is_filled():
    """Does this process get such memory? Not from an allocator of another sort."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    if not (at := libc.malloc(_SAMPLE)):
        return False
    try:
        return _filled(ctypes.string_at(at, _SAMPLE)) > _SAMPLE // 2
    finally:
        libc.free(at)


def _filled(data):
    """So many bytes lie in blocks of the fill. A shorter run may be a number."""
    return _BLOCK * sum(data.count(bytes([byte]) * _BLOCK) for byte in (FILL, _HANDED_OUT))


def _unwritten(tensor):
    """How many elements nobody has written. No operator is called: it would be on the tape of the step."""
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or not tensor.is_contiguous()
        or tensor.nbytes < _BLOCK
    ):
        return 0
    return _filled(ctypes.string_at(tensor.data_ptr(), tensor.nbytes)) // tensor.element_size()


def find(optimizer: Optimizer, kind: str, name: str) -> Tensor | None:
    """The tensor of a name that at_start gave, or None."""
    named = dict(zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)))
    if kind == "parameter":
        return named.get(name)
    if kind == "buffer":
        return next(
            (value for known, value, _ in optimizer_members.normalisation_statistics(optimizer) if known == name), None
        )
    owner, _, key = name.rpartition(".")
    found = (optimizer.state.get(named[owner]) or {}).get(key) if owner in named else None
    return found if is_a(found, torch.Tensor) else None


def compared(analysis: incident.Analysis, optimizer: Optimizer, order: Order) -> Findings | None:
    """What the second process says of the value that the first began with: findings with the cause, or
    None where something wrote it."""
    kind, name, before = order["start"] or ("", "", 0)
    tensor = find(optimizer, kind, name)
    if tensor is None or not (count := _unwritten(tensor)) and _is_filled():
        return None
    same = _native.checksum(tensor) == before
    _native.trace_sink("start", name, tensor)
    others = [
        n
        for n, p in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer))
        if n != name and _unwritten(p)
    ]
    found = analysis.findings(optimizer, [])
    start = found.pop("start", None)
    by_trace = start is not None and start["unwritten"]
    if not count and not by_trace:
        return None
    what = f"{count} of {tensor.numel()} values" if count else f"{tensor.numel()} values"
    experiments = (
        [
            {
                "name": "the program started again, with fresh memory filled with other bytes",
                "outcome": f"{what} of {name} were what fresh memory holds",
                "confirms": True,
            }
        ]
        if count
        else []
    )
    if not same:
        experiments.append(
            {"name": f"{name} compared at the start of two runs", "outcome": "other bits", "confirms": True}
        )
    births = order["alarm"]["births"] if "alarm" in order else []
    outputs = births[0]["outputs"] if births else []
    return {**found, **_explained(outputs, start, name, what, others, experiments)}


def _all(optimizer):
    """(kind, name, tensor) of all that a step may read, the likeliest first. A parameter without a gradient has had no
    part in it."""
    named = list(zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)))
    yield from (("parameter", name, p) for name, p in named if p.grad is not None)
    for name, p in named:
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        yield from (("state", f"{name}.{k}", v) for k, v in (state or {}).items() if is_a(v, torch.Tensor))
    # One that is written in part may be room for more, of which the rest is not read.
    for name, value in optimizer_members.buffers(optimizer):
        if value.numel() - _unwritten(value) < _BLOCK:
            yield "buffer", name, value


def _is_read(op, name):
    return not op.get("view") and any(use.get("text") == name and use["numel"] for use in op["inputs"])


def unwritten(analysis: incident.Analysis, optimizer: Optimizer, order: Order) -> Findings:
    """What nobody has written as the first step begins, whatever it held in the first run: findings with the cause, and
    under "memory" its kind."""
    held = [(kind, name, tensor, n) for kind, name, tensor in _all(optimizer) if (n := _unwritten(tensor))]
    if not held:
        return {"births": []}
    is_well = _native.window_verdict(optimizer, False)["kind"] != "alarm"
    asked, alarm = order["memory"], order["alarm"]
    held.sort(key=lambda one: one[1] not in asked["suspects"])
    kind, name, tensor, count = held[0]
    _native.trace_sink("start", name, tensor)
    found = analysis.findings(optimizer, [], incident.MAX_OPS)
    start, ops = found.pop("start", None), found.pop("ops", None) or ()
    if kind == "buffer" and not any(_is_read(op, name) for op in ops):
        return {"births": []}
    what = f"{count} of {tensor.numel()} values"
    experiments = [
        {
            "name": "the program started again, with fresh memory filled with other bytes",
            "outcome": f"{what} of {name} were what fresh memory holds as its first step began",
            "confirms": True,
        }
    ]
    # Of a step that comes out finite by chance, and of one in which no value is conspicuous, that says nothing.
    was_bad = asked["step"] == 0 and name in asked["suspects"] and alarm["sink"]["kind"] in ("loss", "gradient")
    if is_well and was_bad:
        experiments.append(
            {"name": "step 0 with these bytes in it", "outcome": "it comes out finite", "confirms": True}
        )
    explained = _explained([], start, name, what, [other for _, other, *_ in held[1:]], experiments)
    if len(experiments) == 1:
        explained["cause"]["confidence"] = "likely"
    return {**found, **explained, "memory": kind}


def _explained(outputs, start, name, what, others, experiments):
    birth = {
        **(start["birth"] if start else incident.birth("memory")),
        "phase": "memory",
        "name": name,
        "outputs": outputs,
    }
    call = birth["op"] or "what made it"
    more = ", ".join(others[:_MOST_NAMED]) + (
        f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    )
    text = f"{call} hands out memory with whatever it held before, and nobody has written {what} of {name} since" + (
        f"; nor all of {more}" if more else ""
    )
    confidence = "proven" if len(experiments) > 1 or experiments and start else "likely"
    fix = {
        "text": "initialise it before the first step: nn.init, torch.zeros, reset_parameters, or a checkpoint that "
        "holds every parameter",
        "verified": False,
        "file": birth["file"],
        "line": birth["line"],
    }
    cause = {
        "class": "uninitialised-memory",
        "confidence": confidence,
        "text": text,
        "experiments": experiments,
    }
    return {"births": [birth], "cause": cause, "fix": fix, "path": []}
