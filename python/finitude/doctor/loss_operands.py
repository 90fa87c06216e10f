"""What the losses of the first steps are given: probabilities in place of logits, shapes that broadcast, targets in
another order than the inputs."""

from __future__ import annotations

import torch

from .measure import place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..base.types import Tensor
    from .flow import Flow

MAX_FACTS, TOLERANCE = 200, 1e-2
LOSSES: tuple[str, ...] = (
    "nll_loss_forward",
    "nll_loss2d_forward",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "l1_loss",
)
LOSSES += ("binary_cross_entropy", "binary_cross_entropy_with_logits")
PAIRS = frozenset(f"aten::{name}" for name in LOSSES)


def look(facts: dict[str, Any], flow: Flow, name: str, args: Sequence[Any]) -> None:
    """Before the operation is entered in the flow."""
    found = facts.setdefault("operands", [])
    if len(found) >= MAX_FACTS or not args or not isinstance(args[0], torch.Tensor):
        return
    x = args[0]
    if name == "aten::_log_softmax" and _are_probabilities(x, int(args[1])):
        found.append({"what": "softmax twice", "classes": x.shape[int(args[1])], "at": place()})
    elif name == "aten::nll_loss_forward" and _are_probabilities(x, -1):
        found.append({"what": "no logarithm", "classes": x.shape[-1], "at": place()})
    elif name == "aten::nll_loss_forward" and x.dim() == 2 and _are_over_the_batch(x.detach().float().exp()):
        found.append({"what": "over the batch", "classes": x.shape[-1], "at": place()})
    elif name == "aten::binary_cross_entropy_with_logits" and x.requires_grad:
        if (one := flow.of(x)) is not None and one.made == "aten::sigmoid":
            found.append({"what": "sigmoid twice", "classes": 1, "at": place()})
    elif name in ("aten::sub", "aten::mse_loss", "aten::l1_loss", "aten::smooth_l1_loss") and len(args) > 1:
        if isinstance(args[1], torch.Tensor) and (rows := _broadcast(x, args[1])):
            found.append({"what": "broadcast", "rows": rows, "at": place()})
    if name == "aten::nll_loss_forward" and facts["losses"] and facts["losses"][-1]["kind"] == "labels":
        # The entry that operations.labels has just made of this call.
        facts["losses"][-1]["loader"] = any(t[0] == "loader" for t in flow.tags(args[1]))
    if name in PAIRS and len(args) > 1 and isinstance(args[1], torch.Tensor) and x.requires_grad:
        _compare_orders(found, flow, x, args[1])


def _are_probabilities(x: Tensor, dim: int) -> bool:
    if not x.requires_grad or x.dim() < 2 or x.shape[dim] < 2 or x.numel() < 4 or not x.is_floating_point():
        return False
    x = x.float()
    return bool(x.min() >= 0) and bool(((x.sum(dim) - 1).abs() < TOLERANCE).all())


def _are_over_the_batch(x: Tensor) -> bool:
    """Of probabilities: do they sum to 1 over the rows, and not over the classes?"""
    sums = [(x.sum(dim) - 1).abs() for dim in (0, 1)]
    return min(x.shape) > 1 and bool((sums[0] < TOLERANCE).all()) and bool((sums[1] > TOLERANCE).any())


def _broadcast(a: Tensor, b: Tensor) -> int:
    """Rows of a column that meets a row of as many numbers, one of them computed by the model; else 0."""
    if a.requires_grad == b.requires_grad:
        return 0
    if a.dim() == b.dim() == 2 and a.shape == b.shape and a.shape[0] == a.shape[1] > 1:
        # Expanded before the operation, the one over columns, the other over rows.
        both = sorted([[n == 0 for n in a.stride()], [n == 0 for n in b.stride()]])
        return a.shape[0] if both == [[False, True], [True, False]] else 0
    column, row = (a, b) if a.dim() == 2 else (b, a)
    is_so = column.dim() == 2 and row.dim() == 1 and column.shape == (row.shape[0], 1) and row.shape[0] > 1
    return row.shape[0] if is_so else 0


def _compare_orders(found, flow, x, target):
    """Inputs and targets that were put in order by different permutations, or drawn from one data set by two
    loaders."""
    given, wanted = flow.tags(x), flow.tags(target)
    for kind in ("permutation", "loader"):
        mine = {t for t in given if t[0] == kind}
        other = {t for t in wanted if t[0] == kind}
        if mine and other and not mine & other:
            sizes = {t[2] for t in mine} & {t[2] for t in other}
            # Two loaders in one order give the same samples.
            samples = [t[3] for t in (*mine, *other) if kind == "loader"]
            if sizes and (kind == "permutation" or all(samples) and len(set(samples)) > 1):
                found.append({"what": kind, "size": max(sizes), "at": place()})
