"""Which tensor of what a program saves holds a NaN, an Inf, or a value that cannot be."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _native
from ..base.kinds import is_a
from ..program.optimizer_members import has_memory
from ..program.tensor_stats import count_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

    from ..base.types import Tensor

MOST_DEPTH = 20
# Sums and means of squares, and the like; `sign_of` in src/checkpoint/saved_tensors.cpp has the same for files.
NOT_NEGATIVE = frozenset(
    ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "exp_inf", "row_var", "col_var", "running_var")
)


class Saved(NamedTuple):
    why_bad: str  # "fc.weight holds 3 NaN" of the first tensor that does, or ""
    has_values: bool  # is there a floating point tensor at all?
    has_weights: bool  # is one named as a parameter is?


def look(saved: Any, buffers: Collection[str], parameters: Collection[str]) -> Saved:
    """buffers, parameters: names of those of the program's modules. An Inf in a buffer is meant: a mask."""
    why, has_values, has_weights = "", False, False
    tails = {_tail(name) for name in parameters}  # of a module alone that is trained: one word
    for name, tensor in tensors_in(saved):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        has_values = True
        has_weights = has_weights or not tails.isdisjoint((_tail(name), _tail(name)[-1:]))
        if not why and (found := _why_bad(name, tensor, buffers)):
            why = f"{name or 'the tensor'} holds {found}"
    return Saved(why, has_values, has_weights)


def _tail(name):
    """Wrappers put names before that of a parameter."""
    return tuple(name.split(".")[-2:])


def _why_bad(name, tensor, buffers):
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    if tensor.is_quantized or not has_memory(tensor):
        return ""
    last = name.rpartition(".")[2]
    if not _native.is_finite(tensor):
        statistics = _native.statistics(tensor)
        is_meant = _is_mark(name, tensor) or any(name == one or name.endswith(f".{one}") for one in buffers)
        if not is_meant or statistics is None or statistics["nan"]:
            return count_text(tensor)
    if last in NOT_NEGATIVE and (statistics := _native.statistics(tensor)) is not None and statistics["min"] < 0:
        return "negative values, which a mean of squares cannot have"
    return ""


def _is_mark(name, tensor):
    """Lightning's callbacks begin their best score as Inf; `is_mark` in src/checkpoint/scan.cpp is the same."""
    return tensor.dim() == 0 and name.startswith("callbacks.")


def tensors_in(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Those of dicts, lists, tuples, modules and optimizers, by the path of keys. Nothing of the program is called."""
    if is_a(value, torch.Tensor):
        yield path, value
    elif depth > MOST_DEPTH:
        return
    elif is_a(value, torch.nn.Module):
        for part in ("_parameters", "_buffers", "_modules"):
            yield from tensors_in(getattr(value, part), path, depth + 1)
    elif is_a(value, torch.optim.Optimizer):
        for number, state in enumerate(value.state.values()):
            yield from tensors_in(state, _joined(path, f"state.{number}"), depth + 1)
    elif is_a(value, dict):
        for key, item in list(value.items()):
            yield from tensors_in(item, _joined(path, key), depth + 1)
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            yield from tensors_in(item, _joined(path, number), depth + 1)


def _joined(path, key):
    return f"{path}.{key}" if path else str(key)
