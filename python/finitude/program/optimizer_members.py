"""Finds what belongs to an optimizer without declarations: modules, names, buffers, schedulers, averaged models.

Runs once per optimizer and on an alarm, never in a healthy step. Looks through the garbage collector's objects, which
costs some milliseconds and touches nothing.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import inspect
import sys
import threading

import torch

from .. import _native
from ..base._places import is_library
from ..base.kinds import is_a
from ..base.unseen import unseen
from . import holders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import FrameType
    from typing import Any

    from ..base.types import Generator, Module, Node, Optimizer, Tensor, Thing

KINDS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
_found: Any = None  # {kind: objects}, while none of the program's own code runs


class Standing:
    """Around what is done between two instructions of the program: nothing appears meanwhile, so one look serves all.

    Whatever calls the program's code in between says `moved()` before it looks again.
    """

    _depth = 0

    def __enter__(self):
        Standing._depth += 1

    def __exit__(self, *_: object) -> None:
        Standing._depth -= 1
        moved()


def moved() -> None:
    global _found
    _found = None


def unwrapped(tensor: Tensor) -> Tensor:
    """What holds the values: a transform of torch.func under way puts something around all that is computed
    meanwhile."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


@functools.cache
def _without_memory():
    names = ("Python", "Functionalize", "Meta", "FuncTorchBatched", "FuncTorchGradWrapper")
    return [getattr(torch._C.DispatchKey, name) for name in names]


def has_memory(tensor: Tensor) -> bool:
    """False for what is fake, functional, meta or wrapped so that the engine cannot look into it: any question to such
    a tensor may be code of the program, or add a condition to sizes that are symbols."""
    try:
        keys = torch._C._dispatch_keys(_native.local_of(tensor))
    except RuntimeError:
        return False
    return not any(keys.has(key) for key in _without_memory())


def instances(kind: type[Thing]) -> list[Thing]:
    """Every object of the class `kind`, one of KINDS or derived from one."""
    global _found
    found = _found
    if found is None:
        found = {k: [] for k in KINDS}
        for it in _native.instances_again(KINDS):
            for k, objects in found.items():
                if issubclass(type(it), k):
                    objects.append(it)
        if Standing._depth:
            _found = found
    base = next(k for k in KINDS if issubclass(kind, k))
    return found[base] if kind is base else [o for o in found[base] if issubclass(type(o), kind)]


def parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def magnitudes(optimizer: Optimizer) -> dict[int, float]:
    """{id of a parameter: its largest finite magnitude}."""
    found = [(id(p), _native.statistics(p)) for p in parameters(optimizer)]
    return {number: s["absmax"] for number, s in found if s}


def roots(optimizer: Optimizer) -> list[Module]:
    """Outermost modules that hold at least one parameter of the optimizer."""
    owned = {id(p) for p in parameters(optimizer)}
    modules = instances(torch.nn.Module)
    inner = set()
    for module in modules:
        try:
            inner.update(id(child) for child in module.__dict__.get("_modules", {}).values() if child is not None)
        except Exception:  # a half-built module
            continue
    found = []
    for module in modules:
        if id(module) in inner or "_parameters" not in module.__dict__:
            continue
        try:
            if any(id(p) in owned for p in module.parameters()):
                found.append(module)
        except Exception:
            continue
    return found


def buffers(optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """(name, tensor) of every buffer of the optimizer's modules. Averaged models are not among them: they change after
    the step, so the state before it is not theirs to go back to; their update is held instead."""
    averaged = averaged_models()
    out, seen = [], set()
    for module in roots(optimizer):
        if any(module is a for a in averaged):
            continue
        for name, buffer in module.named_buffers():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                out.append((name, buffer))
    return out


def held_by_modules() -> Iterator[tuple[str, str, Tensor]]:
    """("_parameters" or "_buffers", name after the class of its module, tensor) of all modules there are."""
    for module in instances(torch.nn.Module):
        for held in ("_parameters", "_buffers"):
            tensors = module.__dict__.get(held)
            for name, tensor in list(tensors.items()) if is_a(tensors, dict) else ():
                if is_a(tensor, torch.Tensor):
                    yield held, f"{type(module).__name__}.{name}", tensor


def loose_parameters() -> Iterator[tuple[str, Tensor]]:
    """(name, parameter) of all that no module holds: in a list, or a variable. Such a one may belong to an optimizer
    that has not stepped yet, or to none."""
    held = {id(t) for _, _, t in held_by_modules()}
    loose = [p for p in _native.instances((torch.nn.Parameter,)) if id(p) not in held]
    labels = _labels_in_frames({id(p) for p in loose}) if loose else {}
    for p in loose:
        yield labels.get(id(p), "parameter"), p


def named_memory(optimizer: Optimizer | None) -> Iterator[tuple[str, str, Tensor]]:
    """(kind, name, tensor) of what modules and that optimizer, if any, hold. What nobody trains (a teacher, a frozen
    backbone) first: where a piece of memory is named twice, the last name is the one that says more."""
    for name, p in loose_parameters():
        yield "parameter", name, p
    for held, name, tensor in held_by_modules():
        yield "buffer" if held == "_buffers" else "parameter", name, tensor
    if optimizer is None:
        return
    for name, p in zip(names(optimizer), parameters(optimizer)):
        yield "parameter", name, p
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key, value in (state or {}).items():
            if is_a(value, torch.Tensor):
                yield "state", f"{name}.{key}", value
    for name, buffer in buffers(optimizer):
        yield "buffer", name, buffer


def persistent_buffers(optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """(name, tensor) of the buffers that a checkpoint would hold."""
    out = []
    for root in roots(optimizer) + averaged_models():
        for prefix, module in root.named_modules():
            skipped = getattr(module, "_non_persistent_buffers_set", ())
            for name, buffer in module.named_buffers(recurse=False):  # a scripted module's `_buffers` is no dict
                if name not in skipped:
                    out.append((f"{prefix}.{name}" if prefix else name, buffer))
    return out


def averaged_models() -> list[Any]:
    """torch.optim.swa_utils.AveragedModel instances."""
    module = sys.modules.get("torch.optim.swa_utils")
    return instances(module.AveragedModel) if module is not None else []


def is_statistic(name: str) -> bool:
    """Of a buffer: is it a running mean or variance?"""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def normalisation_statistics(optimizer: Optimizer) -> list[tuple[str, Tensor, bool]]:
    """(name, tensor, is its module training) of running means and variances."""
    out = []
    for root in roots(optimizer):
        for prefix, module in root.named_modules():
            for name, value in module.named_buffers(recurse=False):
                if is_statistic(name):
                    out.append((f"{prefix}.{name}" if prefix else name, value, module.training))
    return out


def others_run_user_code() -> bool:
    """Does a thread other than this one run code of the program's own?"""
    frames = sys._current_frames()
    del frames[threading.get_ident()]  # it would refer to itself, and keep all that its callers name
    frame: FrameType | None
    for frame in frames.values():
        while frame is not None:
            file = frame.f_code.co_filename
            if not is_library(file) and "site-packages" not in file:
                return True
            frame = frame.f_back
    return False


def nodes_of(roots: Iterable[Any]) -> Iterator[Node]:
    """The derivatives of what some tensors were computed from."""
    todo: list[Any] = []
    seen = set()
    for root in roots:
        with contextlib.suppress(RuntimeError):  # no node can be made of a view whose base was written
            if is_a(root, torch.Tensor) and root.grad_fn is not None:
                todo.append(root.grad_fn)
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo.extend(n for n, _ in node.next_functions)


def leaves_of(roots: Iterable[Any]) -> list[Tensor]:
    """The leaves that require a gradient below some tensors."""
    return [leaf for node in nodes_of(roots) if (leaf := getattr(node, "variable", None)) is not None]


def sharing(optimizer: Optimizer) -> list[Optimizer]:
    """It, and those that step a parameter of it: the optimizer that a wrapper holds, and the other way round."""
    owned = {id(p) for p in parameters(optimizer)}
    return [
        o
        for o in instances(torch.optim.Optimizer)
        if any(id(p) in owned for group in getattr(o, "param_groups", ()) for p in group["params"])
    ]


def are_stepped(leaves: Iterable[Tensor]) -> bool:
    """Does an optimizer that there is own one of them? It may not be watched yet."""
    owned = {id(leaf) for leaf in leaves}
    return any(
        id(p) in owned
        for o in instances(torch.optim.Optimizer)
        for group in getattr(o, "param_groups", ())
        for p in group["params"]
    )


def schedulers(optimizers: Collection[Optimizer]) -> list[Any]:
    """Those that set their learning rate; some are given a framework's wrapper around the optimizer."""
    wanted, groups = {id(o) for o in optimizers}, {id(o.param_groups) for o in optimizers}
    found = [(s, getattr(s, "optimizer", None)) for s in instances(torch.optim.lr_scheduler.LRScheduler)]
    return [s for s, o in found if id(o) in wanted or id(getattr(o, "param_groups", None)) in groups]


def scaler_of(optimizer: Optimizer) -> Any:
    """The GradScaler that steps this optimizer, or None."""
    return next(
        (
            s
            for s in instances(torch.amp.GradScaler)
            if s._enabled and id(optimizer) in getattr(s, "_per_optimizer_states", ())
        ),
        None,
    )


@unseen
def device_generators(optimizer: Optimizer) -> list[Generator]:
    """The default generators of the GPUs that the optimizer's parameters lie on, then those that are global
    variables."""
    numbers = sorted({p.device.index for p in parameters(optimizer) if p.device.type == "cuda"})
    usual = [torch.cuda.default_generators[n] for n in numbers]
    own = {
        id(value): value
        for frame in user_frames()
        for value in list(frame.f_globals.values())
        if issubclass(type(value), torch.Generator)
        and value.device.type != "cpu"
        and not any(value is g for g in usual)
    }
    return usual + list(own.values())


def is_users_class(kind: type) -> bool:
    """Is this class of the program's own making? Those of torch and the like have their own means of going back."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or file is not None and not is_library(file)


def referents(it: Any) -> list[Any]:
    """What an object of CPython's own holds, as the garbage collector is given it. A tuple among it may be one that is
    being filled or has empty places (itertools.zip_longest's), which nothing of Python's may read: its elements stand
    for it."""
    found = gc.get_referents(it)
    if any(type(value) is tuple for value in found):
        return [inner for value in found for inner in (gc.get_referents(value) if type(value) is tuple else (value,))]
    return found


def held_by(it: Any) -> list[Any]:
    """The values of an object's attributes, slots too. Not by vars(), which makes a dict of them that all later
    accesses of the program's have to go through (CPython 3.11 and 3.12)."""
    found = []
    for value in gc.get_referents(it):
        if type(value) is dict and len(value) <= 1000:  # of the attributes, where there is one
            found.extend(value.values())
        elif value is not type(it):
            found.append(value)
    return found


def names_of(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's names. Those of a function are not asked for by f_locals: before 3.13 that fills the dict
    that locals() gave the program, and all in it would live as long as the frame."""
    return _native.function_names(frame) if is_function(frame) else dict(frame.f_locals)


def is_function(frame: FrameType) -> bool:
    """Not a module or a class body, whose names are in a dict of their own."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def user_frames(frame: FrameType | None = None) -> Iterator[FrameType]:
    """Frames of the user's code, innermost first."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _distinguish(params, by_id, module_of):
    """Of several modules that have parameters of the same name, each goes before its own by the variable that holds it,
    else by its class."""
    seen = collections.Counter(by_id[p] for p in params)
    alike = [p for p in params if seen[by_id[p]] > 1]
    if not alike:
        return
    modules = list({id(module_of[p]): module_of[p] for p in alike}.values())
    called = {}
    for frame in user_frames():
        for name, value in names_of(frame).items():
            if any(value is m for m in modules):
                called.setdefault(id(value), name)
    classes = collections.Counter(type(m).__name__ for m in modules)
    for i, m in enumerate(modules):
        kind = type(m).__name__
        called.setdefault(id(m), kind if classes[kind] == 1 else f"{kind}[{i}]")
    for p in alike:
        by_id[p] = f"{called[id(module_of[p])]}.{by_id[p]}"


def _labels_in_frames(wanted: set[int]) -> dict[int, str]:
    """{id: what the user's code calls it}, of those that a variable, or a list or dict in one, holds."""
    found: dict[int, str] = {}
    for frame in user_frames():
        for name, value in names_of(frame).items():
            items = [(name, value)]
            if type(value) in (list, tuple) and len(value) <= 1000:
                items = [(f"{name}[{i}]", v) for i, v in enumerate(value)]
            elif type(value) is dict and len(value) <= 1000:
                items = [(f"{name}[{k!r}]", v) for k, v in value.items()]
            for label, item in items:
                if id(item) in wanted:
                    found.setdefault(id(item), label)
    return found


def names(optimizer: Optimizer) -> list[str]:
    """A name for each parameter, in order: its qualified name in a module, else the variable that holds it, else what
    else does (a variable that a function kept, an attribute), else its number."""
    params = parameters(optimizer)
    by_id, module_of = {}, {}
    found = roots(optimizer)
    for module in found:
        for name, p in module.named_parameters(remove_duplicate=False):
            if id(p) not in by_id:
                by_id[id(p)] = name.replace("_orig_mod.", "")  # torch.compile's wrapper adds that
                module_of[id(p)] = module
    _distinguish([id(p) for p in params if id(p) in by_id], by_id, module_of)
    missing = [p for p in params if id(p) not in by_id]
    if missing:
        wanted = {id(p) for p in missing}
        by_id.update(_labels_in_frames(wanted))
        if hidden := [p for p in missing if id(p) not in by_id]:
            by_id.update(holders.labels(hidden, [params, missing, *(g["params"] for g in optimizer.param_groups)]))
    return [by_id.get(id(p), f"parameter {i}") for i, p in enumerate(params)]
