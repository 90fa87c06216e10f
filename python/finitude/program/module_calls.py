"""What the modules of one step take in and return, and the gradients of what they return: statistics, checksums or
whole values. Global hooks of torch.nn are in place while that step runs, and at no other time."""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import torch
from torch.nn.modules import module as torch_module

from .. import _native
from ..base import compat
from ..base.dump_plan import Scope
from ..base.kinds import is_a
from ..base.plain_json import number
from . import optimizer_members, sharding
from .state_format import DTYPES
from .tensor_stats import statistic_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ..base.dump_plan import Plan
    from ..base.types import Module, Optimizer, Tensor

MOST_DEPTH = 6  # of containers in arguments and results
HEADER_BYTES = 128  # of a tensor in a safetensors file, without its name


class ModuleCalls:
    """The calls of one step. `begin` and `end` put the hooks in place and take them out."""

    def __init__(self, in_guard: Callable[..., Any], plan: Plan, room: int):
        """in_guard: calls what it is given, and notes an internal failure. plan: what is wanted. room: bytes that
        records and values may take."""
        self._in_guard, self._plan, self._scope = in_guard, plan, Scope(plan.scope())
        self._rows, self._room = plan.rows(), room
        self.records: list[bytes] = []  # JSON
        self.seen: list[dict[str, Any]] = []  # the same of all calls, wanted or not, without what they hold
        self.values: dict[str, Tensor] = {}
        self._no_room = {"records": 0, "values": 0, "tensors of a device": 0}  # how many
        self._copies_room = room  # bytes of copies of what is on devices
        self._devices: set[torch.device] = set()  # that copies were made of
        self._copies: list[tuple[dict[str, Any], Tensor]] = []  # of the record that is being made
        self._waiting: list[tuple[int, dict[str, Any], list[tuple[dict[str, Any], Tensor]]]] = []  # place, record
        self._running: list[_Running] = []  # modules whose forward runs
        self._counts: dict[str, int] = {}
        self._paths: dict[int, dict[int, tuple[str, Module]]] = {}  # of what is in a module that called another
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
        self._paths.clear()

    def read_devices(self) -> None:
        """What was copied off devices is looked at. The step has ended: here they are waited for."""
        observed = _native.observe_operators(False)
        try:
            for device in self._devices:
                _native.wait_for_device(device)
            for at, record, copies in self._waiting:
                for entry, copy in copies:
                    _look(entry, copy)
                self.records[at] = self._as_json(record)
        finally:
            _native.observe_operators(observed)
        self.records = [record for record in self.records if record]
        self._waiting, self._devices = [], set()

    def lacks(self) -> list[str]:
        """What there was no room for."""
        return [f"{count:,} {what} beyond --dump-mb" for what, count in self._no_room.items() if count]

    def _takes(self, size, what):
        """Is there room for so many bytes more?"""
        has_room = size <= self._room
        self._room -= size if has_room else 0
        self._no_room[what] += not has_room
        return has_room

    def add_gradients(self, optimizer: Optimizer) -> None:
        """Of the parameters of an optimizer, as they were when its step began."""
        for name, parameter in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
            if parameter.grad is not None and self._is_in_scope(name):
                self._add_record(_Call("", "parameter", "backward", 0), [], [(f"{name}.grad", parameter.grad)], "")

    def _is_in_scope(self, parameter):
        return self._scope.has_below_root(parameter.rpartition(".")[0])

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
        path = self._path_of(module)
        self._running.append(_Running(module, path, _called_at(self._plan.with_stacks), self._scope.begins(path)))

    def _path_of(self, module):
        if not self._running:
            return type(module).__name__
        parent = self._running[-1]
        if (names := self._paths.get(id(parent.module))) is None:
            names = self._paths[id(parent.module)] = {id(m): (n, m) for n, m in parent.module.named_modules()}
        own = names.get(id(module), ("", None))
        return f"{parent.path}.{own[0] if own[1] is module else type(module).__name__}"

    def _close_one(self, module, args, kwargs, output):
        while self._running:  # a forward that raised may have left its own
            one = self._running.pop()
            if one.module is module:
                break
        else:
            return
        name = one.path
        self._scope.ends(name)
        if not one.is_in_scope:
            self.seen.append(_Call(name, type(module).__name__, "forward", 0)._asdict())
            return
        number = self._counts[name] = self._counts.get(name, -1) + 1
        key = f"{name}#{number}" if number else name
        outputs = list(_named(output, "output"))
        micro_batch = _native.counters()["backward_calls"] - self._backwards
        file, line, stack = one.called_at
        call = _Call(name, type(module).__name__, "forward", micro_batch, number, file, line, stack)
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
        if not call.stack:
            del record["stack"]
        self.seen.append(call._asdict())
        if not self._plan.takes(record) or (not inputs and not self._plan.has_side("outputs")):
            return
        observed = _native.observe_operators(False)  # ours are none of the program's
        try:
            self._fill(record, call.op, inputs, outputs, key, module)
        finally:
            copies, self._copies = self._copies, []
            _native.observe_operators(observed)
        if copies:
            self._waiting.append((len(self.records), record, copies))
        self.records.append(b"" if copies else self._as_json(record))

    def _as_json(self, record):
        """b"" where there is no room for it."""
        content = json.dumps(record, allow_nan=False).encode()
        return content if self._takes(len(content) + 1, "records") else b""

    def _fill(self, record, op, inputs, outputs, key, module):
        for which, tensors in (("inputs", inputs), ("outputs", outputs)):
            for arg, whole in tensors if self._plan.has_side(which) else ():
                tensor = whole if op == "parameter" else self._chosen_rows(whole)
                entry, held = self._entry(arg, tensor)
                if held is None:
                    continue
                record[which].append(entry)
                if self._plan.kind == "tensors" and tensor.dtype in DTYPES:
                    name = f"{key}.{arg}" if key else arg
                    if self._takes(held.numel() * held.element_size() + len(name) + HEADER_BYTES, "values"):
                        self.values[name] = held if tensor.device.type != "cpu" else held.clone()
        if module is not None:
            record.update(self._own_state(module))

    def _own_state(self, module):
        """What its outcome depends on besides its inputs: parameters and buffers of its own, and settings."""
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        entries = [self._entry(name, tensor) for name, tensor in own]
        found: dict[str, Any] = {"parameters": [entry for entry, held in entries if held is not None]}
        if type(module).__module__.startswith("torch.nn."):  # extra_repr of a class of the program is its own code
            mode = "training" if module.training else "evaluation"
            found["settings"] = ", ".join(filter(None, (module.extra_repr(), mode)))
        return found

    def _entry(self, arg, tensor):
        """(what a record has of it, its memory or a copy); (.., None) where it cannot be read. What is on a device is
        copied without waiting, and looked at in read_devices."""
        entry: dict[str, Any] = {"arg": arg}
        if not optimizer_members.has_memory(tensor):
            return entry, None
        local = sharding.local_part(tensor)
        entry.update(sharding.place(tensor))
        if local.device.type == "cpu":
            return entry, local if _look(entry, local) else None
        if local.layout != torch.strided:
            return entry, None
        size = local.numel() * local.element_size()
        copy = _native.copied_off(local) if size <= self._copies_room else None
        if copy is None:
            self._no_room["tensors of a device"] += 1
            return entry, None
        self._copies_room -= size
        self._devices.add(local.device)
        self._copies.append((entry, copy))
        return entry, copy

    def _chosen_rows(self, tensor):
        """Of a tensor with enough rows; others are taken whole."""
        if self._rows is None or tensor.dim() == 0 or not sharding.is_plain(tensor):
            return tensor
        first, end = self._rows
        return tensor.detach()[first:end] if tensor.shape[0] >= end else tensor


class _Running(NamedTuple):
    module: Module
    path: str
    called_at: tuple[str, int, list[str]]
    is_in_scope: bool


class _Call(NamedTuple):
    """Keys of a record."""

    module: str
    op: str  # class of the module
    phase: str
    micro_batch: int
    call: int = 0  # of this module within the step
    file: str = ""  # of the user's code, that called it
    line: int = 0
    stack: Sequence[str] = ()  # all frames of the user's code, the innermost first, where they were asked for


def _called_at(with_stack):
    """(file, line, stack) of the user's code."""
    frames = list(optimizer_members.user_frames(sys._getframe(2))) if with_stack else []
    frame = frames[0] if frames else next(optimizer_members.user_frames(sys._getframe(2)), None)
    if frame is None:
        return "", 0, []
    stack = [f"{f.f_code.co_filename}:{f.f_lineno} in {f.f_code.co_name}" for f in frames]
    return frame.f_code.co_filename, frame.f_lineno, stack


def _look(entry, tensor):
    """Adds what it holds; False: that cannot be read."""
    if not (figures := _native.statistics(tensor)):
        return False
    entry.update(statistic_of(entry["arg"], tensor, figures))
    entry.update(sum_sq=number(figures["sum_sq"]), checksum=checksum(tensor))
    return True


def checksum(tensor: Tensor) -> str:
    """Of the elements of a tensor in row-major order: 16 digits."""
    return f"{_native.checksum(tensor.detach().resolve_conj().resolve_neg()):016x}"


def _named(value: Any, name: str, depth: int = MOST_DEPTH) -> Iterator[tuple[str, Tensor]]:
    """The tensors of arguments or results, by their place."""
    if is_a(value, torch.Tensor):
        yield name, value
    elif depth and is_a(value, dict):
        for key, item in value.items():
            yield from _named(item, f"{name}.{key}", depth - 1)
    elif depth and is_a(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _named(item, name if len(value) == 1 else f"{name}.{i}", depth - 1)
