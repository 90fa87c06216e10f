"""How the step of an optimizer's class is held: whose is replaced for good, and what takes it out again."""

from __future__ import annotations

import torch

from .. import _native
from ..base import compat
from ..base.unseen import unseen
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Optimizer

hooks: list[Callable[..., None]] = []  # in Python, which torch calls at each step
_held = []  # (cell, the step that was in it)


def is_torchs(kind: Any) -> bool:
    """Is the step of this class one of torch.optim's? Those evaluate a closure before they write anything, and leave
    out a parameter that has no gradient. (torch.distributed.optim wraps other optimizers: not among them.)"""
    return compat.step_cell(kind) is None or getattr(kind.step, "__module__", "").split(".")[:2] == ["torch", "optim"]


@unseen
def register(optimizer: Optimizer) -> None:
    """Makes the engine know the optimizer; a class outside torch.optim gets its wrapper."""
    compat.skip_in_dynamo(_native.optimizer_pre_hook)
    compat.skip_in_dynamo(_native.check_after_step)
    for hook in hooks:
        compat.skip_in_dynamo(hook)
    kind = type(optimizer)
    in_torch = is_torchs(kind)
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in optimizer_members.parameters(optimizer))
    _native.register_optimizer(optimizer, in_torch, half or not in_torch)
    if in_torch:
        return
    cell: Any = compat.step_cell(kind)  # is there, see is_torchs
    if getattr(cell.cell_contents, "__name__", "") != "finitude_guarded_step":
        _held.append((cell, cell.cell_contents))
        stand_in = _native.make_guarded_step(cell.cell_contents)
        compat.skip_in_dynamo(stand_in, cell.cell_contents)
        cell.cell_contents = stand_in


def leave_out(optimizer: Optimizer) -> bool | None:
    """The call of its step that comes next is skipped. None: it cannot be."""
    cell = compat.step_cell(type(optimizer))
    if cell is None:
        return None
    _native.leave_out_once(cell)
    return True


def release() -> None:
    """Every class has its own step again."""
    while _held:
        cell, step = _held.pop()
        cell.cell_contents = step
