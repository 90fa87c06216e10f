"""What the modules of one step take in and return, and the gradients of what they return: statistics, checksums or
whole values. Global hooks of torch.nn are in place while that step runs, and at no other time."""

from __future__ import annotations

import hashlib
import sys
from typing import NamedTuple

import torch
from torch.nn.modules import module as torch_module

from .. import _native
from ..base import compat
from ..base.plain_json import number
from . import optimizer_members, sharding
from .state_format import DTYPES, content
from .tensor_stats import statistic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..base.types import Module, Optimizer, Tensor

MOST_DEPTH = 6  # of containers in arguments and results


class ModuleCalls:
    """The calls of one step. `begin` and `end` put the hooks in place and take them out."""

    def __init__(self, in_guard: Callable[..., Any], keeps_values: bool, takes: Callable[[dict[str, Any]], bool]):
        """in_guard: calls what it is given, and notes an internal failure. takes: is a record wanted?"""
        self._in_guard, self._keeps_values, self._takes_record = in_guard, keeps_values, takes
        self.records: list[dict[str, Any]] = []
        self.seen: list[dict[str, Any]] = []  # the same of all calls, wanted or not, without what they hold
        self.values: dict[str, Tensor] = {}
        self.bytes = 0
        self._running: list[tuple[Module, str, tuple[str, int]]] = []  # modules whose forward runs; where it was called
        self._counts: dict[str, int] = {}
        self._handles: list[Any] = []
        self._backwards = _native.counters()["backward_calls"]  # before the step

    def begin(self) -> None:
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._forward_begins),
            torch_module.register_module_forward_hook(
                self._forward_ends, **compat.hooks_with_kwargs(), always_call=True
            ),
        ]

    def end(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._running.clear()

    def add_gradients(self, optimizer: Optimizer) -> None:
        """Of the parameters of an optimizer, as they were when its step began."""
        for name, parameter in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
            if parameter.grad is not None:
                self._add_record(_Call("", "parameter", "backward", 0), [], [(f"{name}.grad", parameter.grad)], "")

    # -- hooks ------------------------------------------------------------------------------------

    def _forward_begins(self, module, args):
        if not torch.compiler.is_compiling():
            self._in_guard(self._open_one, module)

    def _forward_ends(self, module, args, *rest):
        """rest: keyword arguments and result. An older torch, and any where a forward raised, gives the result only."""
        if not torch.compiler.is_compiling():
            kwargs = rest[0] if len(rest) == 2 else {}
            self._in_guard(self._close_one, module, args, kwargs, rest[-1])

    def _open_one(self, module):
        self._running.append((module, self._path_of(module), _called_at()))

    def _path_of(self, module):
        if not self._running:
            return type(module).__name__
        parent, name, _ = self._running[-1]
        own = next((n for n, m in parent.named_modules() if m is module), type(module).__name__)
        return f"{name}.{own}"

    def _close_one(self, module, args, kwargs, output):
        while self._running:  # a forward that raised may have left its own
            known, name, place = self._running.pop()
            if known is module:
                break
        else:
            return
        number = self._counts[name] = self._counts.get(name, -1) + 1
        key = f"{name}#{number}" if number else name
        outputs = list(_named(output, "output"))
        micro_batch = _native.counters()["backward_calls"] - self._backwards
        call = _Call(name, type(module).__name__, "forward", micro_batch, number, *place)
        inputs = [*_named(args, "input"), *_named(kwargs, "input")]
        self._add_record(call, inputs, outputs, key, module)
        call = call._replace(phase="backward")
        for arg, tensor in outputs:
            if tensor.requires_grad:
                tensor.register_hook(self._on_gradient(call, f"{arg}.grad", key))

    def _on_gradient(self, call, arg, key):
        def on_gradient(grad):  # has no reference to the tensor, and returns nothing: the gradient stays
            self._in_guard(self._add_record, call, [], [(arg, grad)], key)

        return on_gradient

    def _add_record(self, call, inputs, outputs, key, module=None):
        record: dict[str, Any] = {**call._asdict(), "depth": 0, "inputs": [], "outputs": []}
        self.seen.append(call._asdict())
        if not self._takes_record(record):
            return
        for which, tensors in (("inputs", inputs), ("outputs", outputs)):
            for arg, tensor in tensors:
                if (one := _statistics(arg, tensor)) is None:
                    continue
                record[which].append(one)
                if self._keeps_values and tensor.dtype in DTYPES:
                    local = sharding.local_part(tensor)
                    self.values[f"{key}.{arg}" if key else arg] = local.cpu().clone()
                    self.bytes += local.numel() * local.element_size()
        if module is not None:
            record.update(_own_state(module))
        self.records.append(record)


class _Call(NamedTuple):
    """Keys of a record."""

    module: str
    op: str  # class of the module
    phase: str
    micro_batch: int
    call: int = 0  # of this module within the step
    file: str = ""  # of the user's code, that called it
    line: int = 0


def _called_at():
    frame = next(optimizer_members.user_frames(sys._getframe(2)), None)
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _own_state(module):
    """What its outcome depends on besides its inputs: parameters and buffers of its own, and settings."""
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    found: dict[str, Any] = {"parameters": [one for name, t in own if (one := _statistics(name, t))]}
    if type(module).__module__.startswith("torch.nn."):  # extra_repr of a class of the program is its own code
        mode = "training" if module.training else "evaluation"
        found["settings"] = ", ".join(filter(None, (module.extra_repr(), mode)))
    return found


def _statistics(arg, tensor):
    if not optimizer_members.has_memory(tensor):
        return None
    local = sharding.local_part(tensor)
    figures, one = _native.statistics(local), statistic(arg, local)
    if not figures or not one:
        return None
    return {**one, **sharding.place(tensor), "sum_sq": number(figures["sum_sq"]), "checksum": checksum(local)}


def checksum(tensor: Tensor) -> str:
    """Of the bits of a tensor in row-major order: 16 digits."""
    return hashlib.blake2b(content(tensor), digest_size=8).hexdigest()


def _named(value: Any, name: str, depth: int = MOST_DEPTH) -> Iterator[tuple[str, Tensor]]:
    """The tensors of arguments or results, by their place."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            yield from _named(item, f"{name}.{key}", depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _named(item, name if len(value) == 1 else f"{name}.{i}", depth - 1)
