"""The norm of finite gradients overflowed, and clipping by it multiplied them all by zero: the weights do not move and
looks healthy."""

from __future__ import annotations

import weakref

from ..program import optimizer_members
from . import hyperparameters, incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Optimizer, Window
    from .document import Report

LARGEST_NORM = 1.8e19  # whose square fits in float32

_last = (
    weakref.WeakKeyDictionary()
)  # optimizer -> (the advisory, its first step, that step's norm, its last step, how often)


def advise_row(report: Report, optimizer: Optimizer | None, step: int, window: Window | None = None) -> None:
    """One advisory for all steps in a row that went so. window: what is known of the norm, None on a device."""
    none = None, step, "", step, 0
    advisory, first, norm, last, times = _last.get(optimizer, none) if optimizer is not None else none
    if advisory is None or step != last + 1:
        before = len(report.advisories)
        report.advise("clipping", step, "", _cause(window), _births(window))
        if len(report.advisories) == before:
            return  # a report lists only so many of a kind
        advisory, first, times = report.advisories[-1], step, 0
        norm = (
            f"; in float64 it is {window['norm_in_float64']:.3g}{_still_scaled(optimizer, window['norm_in_float64'])}"
            if window is not None and window["norm_in_float64"]
            else ""
        )
    if optimizer is not None:
        _last[optimizer] = advisory, first, norm, step, times + 1
    advisory["last_step"], advisory["times"] = step, times + 1
    moves = (
        "nothing but momentum and weight decay moves a weight"
        if _moves_without_gradient(optimizer)
        else "no weight that it was to limit is updated"
    )
    often = f"; so it was in {times + 1} steps in a row, {first} to {step}" if times else ""
    advisory["text"] = (
        f"the gradient norm overflowed though every gradient is finite{norm}; clipping by it set "
        f"them to zero: {moves} from "
        f"step {first} on, until the norm is finite again{often}"
    )


def _still_scaled(optimizer, norm):
    """Of a norm that a GradScaler's scale makes too large. Whether unscale_ was called before it is not known."""
    scaler = optimizer_members.scaler_of(optimizer) if optimizer is not None else None
    scale = float(scaler.get_scale()) if scaler is not None else 0.0
    if not scale > 1 or norm / scale > LARGEST_NORM:
        return ""
    return (
        f", {norm / scale:.3g} times the loss scale of {scale:.3g}: unless scaler.unscale_(optimizer) was called "
        "before gradients were clipped, the scale is a factor of that norm, and init_scale may be too large"
    )


def _births(window):
    return [incident.birth("backward", "aten::linalg_vector_norm", *window["norm_place"])] if window is not None else ()


def _cause(window):
    true = (
        f", which is {window['norm_in_float64']:.3g} in float64,"
        if window is not None and window["norm_in_float64"]
        else ""
    )
    return incident.cause("clipping", f"the norm of finite gradients{true} overflowed")


def _moves_without_gradient(optimizer):
    if optimizer is None:
        return True
    groups = optimizer.param_groups
    return any(hyperparameters.number(g.get(key)) for g in groups for key in ("momentum", "weight_decay")) or any(
        "betas" in g for g in groups
    )
