"""Gradients by depth and over time."""

import math

from ..facts import number, slope
from ..registry import bad, check, note, warn

DEPTH, FACTOR, FIT = 6, 1e4, 0.8
ZEROS = 20  # steps without any gradient: fewer are a hinge that is met, or blank batches
GROWTH, FEW = 1e3, 4  # of one layer's gradient, over so many steps at least


@check("P18", "gradient-profile", "steps")
def by_depth(steps):
    """Gradients that grow or vanish ten-thousandfold evenly from layer to layer, over at least six, with the layer
    where the ratio breaks; a layer whose gradient grows a thousandfold over four and more steps; gradients of an
    optimizer that are all exactly zero while the loss is not, or those of some layers (a note; over 20 steps a
    warning for all of them, and where a ReLU or sigmoid is saturated throughout)."""
    for seen in steps.by_optimizer().values():
        last = seen[-1]
        grads = [p for p in last["parameters"] if p["grad"] and p["grad"]["numel"]]
        if grads and all(_is_zero(p) for s in seen for p in s["parameters"] if p["grad"]):
            if number(last["loss"]) != 0:
                yield _all_zero(steps, seen)
            continue
        yield from _dead_layers(steps, seen)
        yield from _growing(steps, seen)
        yield from _profile(steps, last, grads)


def _is_zero(p):
    return p["grad"]["zero"] == p["grad"]["numel"]


def _all_zero(steps, seen):
    last = seen[-1]
    make = warn if len(seen) >= ZEROS else note
    dead = next((one for one in steps.layers if one["zero"] == one["numel"]), None)
    why = f"; the output of {dead['name'] or dead['class']} is all zero" if dead else ""
    more = "" if len(seen) >= ZEROS else f"; --steps {ZEROS} shows whether it stays so"
    return make(
        f"all gradients of {last['optimizer']} were exactly zero in {len(seen)} steps while the "
        f"loss is {last['loss']}{why}",
        f"what the loss depends on is detached from the parameters, saturated, blank, or underflows{more}",
        steps.at(last),
        steps=len(seen),
        layer=dead["name"] if dead else None,
    )


def _dead_layers(steps, seen):
    if len(seen) < 2:
        return
    dead = set.intersection(
        *({p["name"] for p in s["parameters"] if p["grad"] and p["grad"]["numel"] and _is_zero(p)} for s in seen)
    )
    names = [p["name"] for p in seen[-1]["parameters"] if p["name"] in dead]
    if names:
        flat = steps.get("wiring", {}).get("dead", ()) if len(seen) >= ZEROS else ()
        why = f"; {flat[0]['op']} is saturated in all of its elements in every call" if flat else ""
        yield (warn if flat else note)(
            f"{len(names)} of {len(seen[-1]['parameters'])} parameters had a gradient of exactly "
            f"zero in all {len(seen)} steps: "
            f"{', '.join(names[:4])}{why}",
            "not a fault where their part of the loss is off; else saturated or dead units, or underflow",
            steps.at(flat[0] if flat else seen[-1]),
            parameters=names[:20],
        )


def _growing(steps, seen):
    if len(seen) < FEW:
        return
    found = []
    for i, p in enumerate(seen[-1]["parameters"]):
        norms = [
            s["parameters"][i]["grad"]["norm"] for s in seen if i < len(s["parameters"]) and s["parameters"][i]["grad"]
        ]
        factor, fit = slope([number(n) for n in norms])
        if len(norms) == len(seen) and fit >= FIT and factor > GROWTH:
            found.append((factor, p["name"], norms))
    if found:
        factor, name, norms = max(found, key=lambda f: f[0])
        yield warn(
            f"the gradient of {name} grew {factor:.3g} times over {len(norms)} steps, more than any other",
            "clip the norm; a lower learning rate; look at what feeds this layer",
            steps.at(seen[-1]),
            layer=name,
            norms=norms[:50],
        )


def _profile(steps, last, grads):
    weights = [
        p
        for p in grads
        if len(p["shape"]) >= 2 and number(p["grad"]["norm"]) > 0 and not p["grad"]["nan"] + p["grad"]["inf"]
    ]
    if len(weights) < DEPTH:
        return
    # Of a typical element: a norm also shows how large a matrix is.
    sizes = [number(p["grad"]["norm"]) / math.sqrt(p["numel"]) for p in weights]
    factor, fit = slope(sizes)
    if fit >= FIT and not 1 / FACTOR < factor < FACTOR:
        small, large = (weights[0], weights[-1]) if factor > 1 else (weights[-1], weights[0])
        jump = max(range(1, len(sizes)), key=lambda i: abs(math.log(sizes[i] / sizes[i - 1])))
        ratio = sizes[jump] / sizes[jump - 1]
        yield warn(
            f"gradients differ {max(factor, 1 / factor):.3g} times over {len(weights)} weights: "
            f"{small['grad']['norm']:.3g} at "
            f"{small['name']}, {large['grad']['norm']:.3g} at {large['name']}; the largest step, "
            f"{max(ratio, 1 / ratio):.3g} times, is "
            f"between {weights[jump - 1]['name']} and {weights[jump]['name']}",
            "residual connections, normalisation, initial values with the gain of the activation function",
            steps.at(last),
            factor=factor,
            breaks_at=weights[jump]["name"],
            profile=[[p["name"], s] for p, s in zip(weights, sizes)][:100],
        )


@check("P18", "gradient-profile", "run")
def over_time(run):
    """A bad step by exploding gradients, with the parameters it showed in; the last 20 steps of a run without any
    gradient."""
    for alarm in run.caused_by("exploding-gradient"):
        found = [one.get("name", "") for one in run.part(alarm, "gradients").get("bad") or [] if isinstance(one, dict)]
        shown = f" (not finite: {', '.join(map(str, found[:4]))})" if found else ""
        yield bad(
            f"{run.step(alarm)}: {(alarm.get('cause') or {}).get('text', '')}{shown}",
            (alarm.get("fix") or {}).get("text") or "clip the norm; look which layer is the first to grow",
            run.at(alarm),
            gradients=found[:20],
        )
    for steps in run.optimizers().values():
        tail = [s for s in steps if s["applied"]][-ZEROS:]
        if len(tail) == ZEROS and all(s["grad_absmax"] == 0 for s in tail) and any(s["loss"] != 0 for s in tail):
            yield warn(
                f"{run.who}the gradients of the last {ZEROS} steps, to step {tail[-1]['step']}, "
                "were all zero at a loss of "
                f"{tail[-1]['loss']:.4g}",
                "saturated activations, a detached loss, or underflow",
            )
