"""Puts what a capsule holds into the objects of a running program: weights, buffers, optimizer state, batches. Whatever
does not fit is named, and then nothing is changed."""

from __future__ import annotations

import collections.abc
import copy

import torch

from .. import _native
from .start_check import kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ..base.types import Generators, Optimizer, Tensor


class Misfit(Exception):
    """What of the capsule has no place in the program, in words."""


def _shape(tensor_or_entry):
    if isinstance(tensor_or_entry, torch.Tensor):
        return f"{str(tensor_or_entry.dtype).removeprefix('torch.')} {list(tensor_or_entry.shape)}"
    return f"{tensor_or_entry['dtype']} {list(tensor_or_entry['shape'])}"


class Held:
    """What a capsule holds, checked: record (its "start") and the bytes of its tensors."""

    def __init__(self, start: dict[str, Any], data: Mapping[str, bytes]):
        self.start, self.data = start, data

    def record(self, name: str) -> dict[str, Any]:
        found = self.start["tensors"].get(name)
        if found is None or name not in self.data:
            raise Misfit(f"the capsule does not hold {name}")
        return found

    def tensor(self, name: str) -> Tensor:
        """A tensor of its own."""
        record = self.record(name)
        try:
            dtype = getattr(torch, record["dtype"])
            flat = (
                torch.frombuffer(bytearray(self.data[name]), dtype=dtype)
                if self.data[name]
                else torch.empty(0, dtype=dtype)
            )
            return flat.reshape(record["shape"])
        except (AttributeError, TypeError, ValueError, RuntimeError):
            raise Misfit(f"{name} of the capsule is not {_shape(record)}") from None

    def holds(self, record: dict[str, Any]) -> bool:
        """Whether all tensors of an optimizer are there, whole."""
        try:
            for name in {
                *record["parameters"].values(),
                *record["buffers"].values(),
                *(k for state in record["state"].values() for k in state.values()),
            } - {None}:
                self.tensor(name)
        except Misfit:
            return False
        return True

    def generators(self, name: str | None) -> Generators | None:
        """States of all generators, or None where the capsule does not know them."""
        if name is None:
            return None
        try:
            return _native.Generators.from_bytes(self.data[name])
        except (KeyError, ValueError):
            raise Misfit(f"{name} of the capsule are no states of generators") from None


def _names(names: Iterable[str], most: int = 4) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def misfits(held: Held, wanted: Mapping[str, str | None], named: Mapping[str, Tensor]) -> list[str]:
    """Why what the capsule records (name -> key) cannot go into the tensors `named` (name -> tensor): a list of
    texts."""
    missing = [n for n in wanted if n not in named]
    more = [n for n in named if n not in wanted]
    found = [f"the program has no {_names(missing)}"] if missing else []
    found += [f"the capsule has no {_names(more)}"] if more else []
    for name, key in wanted.items():
        if name not in named or key is None:
            continue
        record, there = held.record(key), named[name]
        if record["shape"] != list(there.shape) or record["dtype"] != str(there.dtype).removeprefix("torch."):
            found.append(f"{name} is {_shape(record)} in the capsule and {_shape(there)} in the program")
    return found


def put_tensors(held: Held, wanted: Mapping[str, str | None], named: Mapping[str, Tensor]) -> None:
    """Copies; every shape fits."""
    with torch.no_grad():
        for name, key in wanted.items():
            if key is not None and name in named:
                named[name].detach().copy_(held.tensor(key))


def put_state(held: Held, record: dict[str, Any], optimizer: Optimizer, by_name: Mapping[str, Tensor]) -> None:
    """The optimizer's state of each parameter, in place of what it has: all of it, or Misfit."""
    if not hasattr(optimizer.state, "get"):
        return
    if record.get("not_kept"):
        raise Misfit(f"the capsule does not hold all of the optimizer's state: {_names(record['not_kept'])}")
    states = {}
    for name, p in by_name.items():
        fresh = dict(record["scalars"].get(name, {}))
        for key, tensor in record["state"].get(name, {}).items():
            if tensor is None:
                raise Misfit(f"the capsule does not hold {name}.{key}")
            fresh[key] = _on(p.device, held.tensor(tensor))
        for key, form in record.get("trees", {}).get(name, {}).items():
            fresh[key] = made(held, form, p.device)
        own = (
            optimizer.state.get(p) if "trees" not in record else None
        )  # a capsule of an earlier version holds tensors and numbers only
        if lacks := [key for key, value in (own or {}).items() if key not in fresh and value is not None]:
            raise Misfit(
                f"the capsule was made by an earlier version, which did not keep {_names(lacks)} of "
                "the optimizer's state"
            )
        states[p] = fresh
    for p, fresh in states.items():
        if fresh:
            optimizer.state[p] = fresh
        elif p in optimizer.state:
            del optimizer.state[p]


def _on(device, value):
    return value.to(device) if value.dim() else value  # a step's counter stays where torch.optim wants it


def made(held, tree, device):
    """The value that a tree describes, without one to be like."""
    kind = kind_of(tree)
    inner = tree[kind]
    if kind == "tensor":
        return _on(device, held.tensor(inner))
    if kind in ("list", "tuple"):
        items = [made(held, t, device) for t in inner]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: made(held, t, device) for key, t in inner}
    if kind == "float":
        return float(inner)
    if kind == "value":
        return inner
    raise Misfit(f"the capsule has a part of the optimizer's state in an unknown form ({kind})")


def rate(record: dict[str, Any], optimizer: Optimizer) -> None:
    """Sets the learning rates to what a scheduler had made of them; a rate that the program sets otherwise stays."""
    for group, before in zip(optimizer.param_groups, record["groups"]):
        first, then, now = before.get("initial_lr"), before.get("lr"), group.get("initial_lr")
        if first and then is not None and now is not None:
            rate = float(now) * (float(then) / float(first))
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def scale(record: dict[str, Any], scaler: Any) -> None:
    """Gives a GradScaler the scale of the capsule as the loss is scaled: what `update` does for the step before comes
    first."""
    original = scaler.scale

    def put(outputs):
        del scaler.scale
        if scaler._enabled:
            if scaler._scale is None:
                scaler._init_scale = record["scale"]
            else:
                scaler._scale.fill_(record["scale"])
            if scaler._growth_tracker is not None:
                scaler._growth_tracker.fill_(record["growth_tracker"])
        return original(outputs)

    scaler.scale = put


def fill(held: Held, tree: dict[str, Any], template: Any, path: str = "batch") -> Any:
    """The batch of the capsule in the form that the program's loader gives: `template` is one of its batches, left as
    it is."""
    kind = kind_of(tree)
    if kind == "other":
        return template
    if kind in ("value", "float"):
        if isinstance(template, (torch.Tensor, collections.abc.Mapping, tuple, list)):
            raise Misfit(f"{path} is {tree[kind]!r} in the capsule and {type(template).__name__} in the program")
        return tree["value"] if kind == "value" else float(tree["float"])
    if kind in ("tensor", "array"):
        there = template if isinstance(template, torch.Tensor) else None
        if kind == "array" and hasattr(template, "__array_interface__"):
            there = torch.as_tensor(template)
        record = held.record(tree[kind])
        if there is None:
            raise Misfit(f"{path} is {_shape(record)} in the capsule and {type(template).__name__} in the program")
        if record["dtype"] != str(there.dtype).removeprefix("torch.") or len(record["shape"]) != there.dim():
            raise Misfit(f"{path} is {_shape(record)} in the capsule and {_shape(there)} in the program")
        value = held.tensor(tree[kind])
        return value.numpy() if kind == "array" else value.to(there.device)
    if kind == "list":
        if not isinstance(template, (tuple, list)) or len(template) != len(tree["list"]):
            raise Misfit(
                f"{path} has {len(tree['list'])} parts in the capsule and is another "
                f"{type(template).__name__} in the program"
            )
        items = [fill(held, t, item, f"{path}[{i}]") for i, (t, item) in enumerate(zip(tree["list"], template))]
        return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)
    if kind == "dict":
        if not isinstance(template, collections.abc.Mapping) or set(template) != {key for key, _ in tree["dict"]}:
            raise Misfit(
                f"{path} has the keys {_names(str(key) for key, _ in tree['dict'])} in the capsule "
                "and others in the program"
            )
        whole = copy.copy(template)
        for key, inner in tree["dict"]:
            whole[key] = fill(held, inner, template[key], f"{path}[{key}]")  # type: ignore[index]
        return whole
    if kind == "object":
        own = getattr(template, "__dict__", None)
        if not isinstance(own, dict) or set(own) != {key for key, _ in tree["object"]}:
            raise Misfit(
                f"{path} is a {tree.get('class')} in the capsule and another {type(template).__name__} in the program"
            )
        whole = copy.copy(template)
        for key, inner in tree["object"]:
            whole.__dict__[key] = fill(held, inner, own[key], f"{path}.{key}")
        return whole
    raise Misfit(f"{path} of the capsule is of an unknown form")
