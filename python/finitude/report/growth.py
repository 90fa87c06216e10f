"""What grew over the steps before a bad one: since which step, and by how much a step, from the ring of steps. How an
onset is found: src/signal/onset.h; how far weights have grown: src/incident/growth.h."""

from __future__ import annotations

import json
import math

from .. import _native
from ..base.unseen import unseen
from ..program import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..base.types import AppliedSteps, Findings, Optimizer, StartMagnitudes
    from .document import Report

CAUSED_BY_GROWTH = frozenset(
    {
        "learning-rate",
        "exploding-gradient",
        "overflow",
        "exp-overflow",
        "half-precision-overflow",
        "clipping",
        "optimizer-arithmetic",
        "loss-scale-misuse",
        "infinity-minus-infinity",
        "zero-times-infinity",
    }
)

DIVERGES = frozenset({"learning-rate", "exploding-gradient"})  # each later step fails by the same weights
UNSOUND = 1e3  # times as large as any gradient before
NO_GRADIENT = 1e10  # is that large in a run that is well


def add_to(found: Findings, steps: AppliedSteps) -> None:
    """Into the cause of a birth that numbers which grow lead to."""
    phase = found["births"][0]["phase"] if found.get("births") else None
    if phase not in ("forward", "backward", "optimizer") or found["cause"]["class"] not in CAUSED_BY_GROWTH:
        return
    if onsets := json.loads(_native.onsets(steps, found["cause"]["class"])):
        found["cause"]["onsets"] = onsets


@unseen
def advise_extremes(report: Report, optimizer: Optimizer, magnitudes: Mapping[int, float]) -> None:
    """Before the first step: such parameters are finite, and the next product with one overflows or is zero."""
    params, names = optimizer_members.parameters(optimizer), optimizer_members.names(optimizer)
    if words := _native.weight_extremes(params, names, magnitudes):
        report.advise("headroom", 0, f"before the first step {words}: it is finite, not sound")


def with_bad_loss(started_with: StartMagnitudes, optimizer: Optimizer) -> str:
    """What is said of the weights where only the loss is bad."""
    gradients = [
        s["absmax"]
        for p in optimizer_members.parameters(optimizer)
        if p.grad is not None and (s := _native.statistics(p.grad))
    ]
    before = [g for _, g, _ in _native.history(_native.window(optimizer)["ordinal"]) if math.isfinite(g)]
    largest = max(gradients, default=0.0)
    if largest >= NO_GRADIENT or before and largest >= UNSOUND * max(before) > 0:
        return f"; gradients are finite, but as large as {largest:.3g}"
    if not gradients:
        return "; no parameter has a gradient"
    params, names = optimizer_members.parameters(optimizer), optimizer_members.names(optimizer)
    _, grown, _ = _native.weights_growth(params, names, started_with.get(id(optimizer)) or {})
    return "; gradients are finite" + ("" if grown else ", weights were not in danger")
