"""Gradients by depth and over time."""

import math

from ..facts import number, slope
from ..registry import bad, check, warn

DEPTH, FACTOR, FIT = 6, 1e4, 0.8
ZEROS = 20   # steps without any gradient


@check("P18", "gradient-profile", "steps")
def by_depth(steps):
    """Gradients that grow or vanish ten-thousandfold evenly from layer to layer, over at least six; gradients of an optimizer that
    are all exactly zero in every step seen, while the loss is not."""
    if not steps.steps:
        return
    last = steps.steps[-1]
    grads = [p for p in last["parameters"] if p["grad"] and p["grad"]["numel"]]
    seen = [s for s in steps.steps if s["ordinal"] == last["ordinal"]]
    if grads and all(_all_zero(s) for s in seen) and number(last["loss"]) != 0:
        yield warn(f"all gradients of {last['optimizer']} were exactly zero in {len(seen)} steps while the loss is {last['loss']}",
                   "what the loss depends on is detached from the parameters, saturated, or underflows", steps.at(last))
        return
    weights = [p for p in grads if len(p["shape"]) >= 2 and p["grad"]["norm"] and not p["grad"]["nan"] + p["grad"]["inf"]]
    if len(weights) < DEPTH:
        return
    # Of a typical element: a norm also tells how large a matrix is.
    factor, fit = slope([number(p["grad"]["norm"]) / math.sqrt(p["numel"]) for p in weights])
    if fit >= FIT and not 1 / FACTOR < factor < FACTOR:
        small, large = (weights[0], weights[-1]) if factor > 1 else (weights[-1], weights[0])
        yield warn(f"gradients differ {max(factor, 1 / factor):.3g} times over {len(weights)} weights: {small['grad']['norm']:.3g} at "
                   f"{small['name']}, {large['grad']['norm']:.3g} at {large['name']}",
                   "residual connections, normalisation, initial values with the gain of the activation function", steps.at(last),
                   factor=factor)


def _all_zero(step):
    return all(p["grad"]["zero"] == p["grad"]["numel"] for p in step["parameters"] if p["grad"])


@check("P18", "gradient-profile", "run")
def over_time(run):
    """A bad step by exploding gradients; the last 20 steps of a run without any gradient."""
    for alarm in run.caused_by("exploding-gradient"):
        yield bad(f"step {alarm.get('step')}: {(alarm.get('cause') or {}).get('text', '')}",
                  (alarm.get("fix") or {}).get("text") or "clip the norm; look which layer is the first to grow", run.at(alarm))
    for steps in run.optimizers().values():
        tail = [s for s in steps if s["applied"]][-ZEROS:]
        if len(tail) == ZEROS and all(s["grad_absmax"] == 0 for s in tail) and any(s["loss"] != 0 for s in tail):
            yield warn(f"the gradients of the last {ZEROS} steps, to step {tail[-1]['step']}, were all zero at a loss of "
                       f"{tail[-1]['loss']:.4g}", "saturated activations, a detached loss, or underflow")
