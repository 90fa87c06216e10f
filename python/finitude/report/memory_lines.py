"""At which line of the script memory of the training stopped being finite that no operator of torch wrote: NumPy's view
of a gradient, a weight or a buffer, ctypes. Of a step that runs again as a whole; value_lines.py calls this at lines
that may write so."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os

import torch

from .. import _native
from ..base import sources, working_folder
from ..program import optimizer_members, sinks as sinks_of
from ..program.tensor_stats import count_text
from . import value_tracer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from ..base.types import Findings, Optimizer, Sink

MOST_NUMBERS, MOST_LOOKS = 1 << 24, 400
WRITERS = frozenset({"grad", "numpy", "data_ptr", "__array__", "ctypes", "memset", "memmove", "from_numpy"})


@dataclasses.dataclass
class _Written:
    address: int
    file: str
    line: int


class Memory:
    """What training holds, looked at before and after lines that may write it. No reference to any of it is kept."""

    def __init__(self):
        self.effort = 0
        self.written: list[_Written] = []
        self._looks = 0

    def before(self, frame: FrameType, line: int) -> set[int] | None:
        """Addresses of what is bad already, or None where that line has no way to write so."""
        if self.effort > MOST_NUMBERS or self._looks > MOST_LOOKS:
            return None
        writers, names = _written_by(frame.f_code.co_filename, line)
        held = frame.f_locals if names and not writers else {}
        is_array = any(type(held.get(name)).__name__ == "ndarray" for name in names)
        return set(self._bad()) if writers or is_array else None

    def after(self, frame: FrameType, line: int, before: set[int] | None) -> None:
        """That line has run."""
        if before is not None:
            file = frame.f_code.co_filename
            self.written += [_Written(address, file, line) for address in self._bad() if address not in before]

    def _bad(self) -> Iterator[int]:
        self._looks += 1
        for optimizer in sinks_of.watched_optimizers():
            tensors = list(optimizer_members.parameters(optimizer))
            tensors += [p.grad for p in tensors if p.grad is not None]
            for tensor in [*tensors, *(b for _, b in optimizer_members.buffers(optimizer))]:
                if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
                    continue
                self.effort += tensor.numel()
                if self.effort <= MOST_NUMBERS and not _native.is_finite(tensor):
                    yield tensor.data_ptr()


@functools.lru_cache(maxsize=4096)
def _written_by(file, line):
    """(does the statement name a way to such memory, the names in it: one may be an array of NumPy's)."""
    nodes = [inner for n in value_tracer.run_at(file, line) for inner in ast.walk(n)]
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    return bool(WRITERS & (names | {n.attr for n in nodes if isinstance(n, ast.Attribute)})), frozenset(names)


def add_to(found: Findings, memory: Memory, optimizer: Optimizer | None, sinks: Sequence[Sink]) -> None:
    """Into the culprit's birth and cause, where it is memory that no operator of the step wrote."""
    birth = found["births"][0] if found.get("births") else None
    if birth is None or birth["op"] or optimizer is None or birth["phase"] not in ("memory", "state"):
        return
    if found["cause"]["class"] not in ("unknown", "corrupted-state", "sticky-state"):
        return
    # A buffer that this step has not read any more harms those after it.
    is_sticky = all(of == "buffer" for of, _, _ in sinks)
    for of, name, tensor in _candidates(birth, optimizer, sinks):
        line = next((w for w in reversed(memory.written) if w.address == tensor.data_ptr()), None)
        if line is not None:
            kept = "sticky-state" if is_sticky and of == "buffer" else "corrupted-state"
            _explain(found, birth, line, of, name, tensor, "wrong-backward" if of == "gradient" else kept)
            return


def _candidates(birth, optimizer, sinks):
    """(kind, name, tensor) of what the birth may be memory of."""
    if birth["phase"] == "memory":
        yield from ((of, name, t) for of, name, t in sinks if of in ("gradient", "buffer") and t is not None)
    else:
        named = optimizer_members.named_memory(optimizer)
        yield from ((of, name, t) for of, name, t in named if name == birth["name"] and of != "state")


def _explain(found, birth, written, of, name, tensor, cause_class):
    file = working_folder.absolute(written.file)
    birth.update({"file": file, "line": written.line, "source": sources.line(file, written.line), "name": name})
    what = f"the gradient of {name}" if of == "gradient" else name
    text = (
        f"the program itself writes {count_text(tensor)} into {what} at {os.path.basename(file)}:{written.line}, by no "
        "operator of torch: NumPy, ctypes or an extension does it"
    )
    fix = "write finite values at this line"
    if of == "gradient":
        text, fix = text + "; backward had left it finite", "write a finite gradient at this line, or none"
    found["cause"] = {
        **found["cause"],
        "class": cause_class,
        "confidence": "likely",
        "text": text,
    }
    found["fix"] = {"text": fix, "verified": False, "file": file, "line": written.line}
