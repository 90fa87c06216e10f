"""What grew over the steps before a bad one: since which step, and by how much a step, from the ring of steps. How an
onset is found: src/signal/onset.h."""

from __future__ import annotations

import json
import math

import torch

from .. import _native
from ..base.plain_json import safe
from ..base.unseen import unseen
from ..program import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..base.types import Alarm, AppliedSteps, Findings, Optimizer, StartMagnitudes, StepWarning
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


UNSOUND = 1e3  # times as large as any gradient before
GROWN = 100.0  # times as large as at the start
ABOVE_ALL = 10.0  # times the largest weight at the start: a parameter that began tiny may grow far without harm
GROWN_BY_RATE = 2.0  # as GROWN, where the cause is that the updates are too large
NEAR_LIMIT = 8.0  # bits below the largest number of the dtype
NEAR_LIMIT_FLOAT16 = 2.0  # the same, where the whole range above 1 is 16 bits
NO_GRADIENT = 1e10  # is that large in a run that is well
NO_WEIGHT = 1e6  # the same of weights, whose squares then reach 1e12


def note_onset(alarm: Alarm, optimizer: Optimizer | None, warnings: Sequence[StepWarning]) -> None:
    """Since which step the training was on its way to this one: loss or gradients that grew up to it, weights that were
    warned of, or a learning rate that had jumped (src/incident/onset.h). warnings: of this run, oldest first."""
    alarm["onset"] = None
    if optimizer is None:
        return
    steps = _native.ring_steps(_native.window(optimizer)["ordinal"])
    growths = [w for w in warnings if w["what"] == "growth"]
    if not _is_of_scale(alarm["cause"]["class"], json.loads(_native.onsets(steps))):
        alarm["onset"] = json.loads(_native.onset(steps, json.dumps(safe(growths)), type(optimizer).__name__))


def _is_of_scale(cause, onsets):
    """Whether only the loss grew, where its scale is what overflows: the gradients, which the step gets unscaled, did
    not."""
    return cause == "loss-scale-misuse" and bool(onsets) and all(one["quantity"] == "loss" for one in onsets)


def add_to(found: Findings, steps: AppliedSteps) -> None:
    """Into the cause of a birth that numbers which grow lead to."""
    phase = found["births"][0]["phase"] if found.get("births") else None
    if phase not in ("forward", "backward", "optimizer") or found["cause"]["class"] not in CAUSED_BY_GROWTH:
        return
    onsets = json.loads(_native.onsets(steps))
    if not onsets or _is_of_scale(found["cause"]["class"], onsets):
        return
    found["cause"]["onsets"] = onsets


def _grown(started_with, optimizer, by_rate=False):
    """(largest factor of any parameter's magnitude since the first step or None, what is unsound of the weights or
    ""). by_rate: the updates are known to be too large."""
    if optimizer is None or not (start := started_with.get(id(optimizer))):
        return None, ""
    now = optimizer_members.magnitudes(optimizer)
    for p in optimizer_members.parameters(optimizer):
        if now.get(id(p)) == 0 and not _native.is_finite(p):  # of which nothing finite is left has no magnitude
            del now[id(p)]
    factors = {p: now[p] / before for p, before in start.items() if before > 0 and p in now}
    largest = max(start.values())
    least, above_all = (GROWN_BY_RATE, 1.0) if by_rate else (GROWN, ABOVE_ALL)
    above = {p: factor for p, factor in factors.items() if factor >= least and now[p] >= above_all * largest}
    if not above:
        return max(factors.values(), default=None), ""
    worst = max(above, key=above.__getitem__)
    names = dict(zip(map(id, optimizer_members.parameters(optimizer)), optimizer_members.names(optimizer)))
    return max(
        factors.values()
    ), f"grown {above[worst]:.3g}-fold since step 0 ({names.get(worst, '')}: {start[worst]:.3g} to {now[worst]:.3g})"


def extremes(optimizer: Optimizer, magnitudes: Mapping[int, float]) -> str:
    """What is unsound of parameters for their size alone: the one nearest to the limit of its dtype, or one of nothing
    but subnormal numbers; "" where all are well inside. magnitudes: {id of a parameter: its largest}."""
    nearest, bits, subnormal = "", math.inf, ""
    for p, name in zip(optimizer_members.parameters(optimizer), optimizer_members.names(optimizer)):
        largest = magnitudes.get(id(p), 0.0)
        if not largest > 0 or not (p.is_floating_point() or p.is_complex()) or p.element_size() < 2:
            continue  # numbers of eight bits are scaled to fill their range
        limits = torch.finfo(p.dtype)
        left = math.log2(limits.max / largest)
        if left < min(bits, NEAR_LIMIT_FLOAT16 if p.dtype is torch.float16 else NEAR_LIMIT):
            bits, nearest = left, f"{name} reaches {largest:.3g}, {_figure(left)} bits below the limit of {_dtype(p)}"
        elif largest < limits.smallest_normal and not subnormal:
            subnormal = f"{name} is subnormal in {_dtype(p)}, {largest:.3g} at most"
    return nearest or subnormal


@unseen
def advise_extremes(report: Report, optimizer: Optimizer, magnitudes: Mapping[int, float]) -> None:
    """Before the first step: such parameters are finite, and the next product with one overflows or is zero."""
    if words := extremes(optimizer, magnitudes):
        report.advise("headroom", 0, f"before the first step {words}: it is finite, not sound")


def _beyond_use(optimizer, magnitudes):
    """Of weights that began so and need not have grown: "w reaches 1e+13"; "" where none is that large."""
    sizes = [magnitudes.get(id(p), 0.0) for p in optimizer_members.parameters(optimizer)]
    largest = max(sizes, default=0.0)
    if not largest >= NO_WEIGHT:
        return ""
    return f"{optimizer_members.names(optimizer)[sizes.index(largest)]} reaches {largest:.3g}"


def _figure(bits):
    return f"{max(bits, 0.0):.2g}"


def _dtype(p):
    return str(p.dtype).removeprefix("torch.")


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
    return "; gradients are finite" + ("" if _grown(started_with, optimizer)[1] else ", weights were not in danger")


def add_weights(started_with: StartMagnitudes, optimizer: Optimizer, alarm: Alarm) -> None:
    """How far the weights have grown since the first step: that they are finite does not make them sound. Weights that
    too large updates made are not called clean however far they got."""
    by_rate = (alarm["cause"] or {}).get("class") == "learning-rate"
    alarm["growth"], words = _grown(started_with, optimizer, by_rate)
    magnitudes = optimizer_members.magnitudes(optimizer)
    words = words or extremes(optimizer, magnitudes) or _beyond_use(optimizer, magnitudes)
    if (words or by_rate) and alarm["weights"] == "clean":
        is_applied = alarm["policy"] == "warn" and not alarm["harmless"]  # which damages them
        alarm["text"] += f"; weights {'were' if is_applied else 'are'} finite" + (f" but {words}" if words else "")
    elif words:
        alarm["text"] += f"; weights are damaged, and {words}"
