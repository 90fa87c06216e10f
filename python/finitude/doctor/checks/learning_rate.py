"""Steps that are too large."""

import math

from ..facts import growth_to_end, number
from ..registry import bad, check, warn

MOVED = 10.0  # times the size of the parameters: small initial values move by once or twice their own
GROWTH = 1e3  # of the largest gradient since its onset
GO_BACK = "go back to a checkpoint of before that step, with a lower learning rate or a longer warm-up"


@check("P12", "learning-rate", "steps")
def first_updates(steps):
    """A first update ten times as large as the parameters it is added to, or a loss that grew a thousandfold by one."""
    for first, then in zip(steps.steps, steps.steps[1:]):
        a, b = number(first["loss"]), number(then["loss"])
        if first["ordinal"] == then["ordinal"] and math.isfinite(a) and a > 0 and b > 1e3 * max(a, 1.0):
            yield bad(
                f"the loss went from {a:.4g} to {b:.4g} in one step at learning rate {first['lr']:g}",
                "a learning rate 3 to 10 times lower, or a warm-up",
                steps.at(first),
                lr=first["lr"],
                losses=[a, b],
                ratio=_ratio(first),
            )
            return
    for step in steps.steps:
        if step["step"] or _has_closure(steps, step):
            continue  # what began at zero is as small as its first update; a closure's step is several updates
        update = step["update"] or {}
        moved, size = number(update.get("moved")), number(update.get("size"))
        if size > 0 and math.isfinite(moved) and moved > MOVED * size:
            yield warn(
                f"step {step['step']} of {step['optimizer']} moved the parameters by "
                f"{moved / size:.3g} times their own size "
                f"(learning rate {step['lr']:g})",
                "a lower learning rate, or a warm-up over the first steps",
                steps.at(step),
                ratio=moved / size,
                lr=step["lr"],
                ratios=[_ratio(s) for s in steps.by_optimizer()[step["ordinal"]]][:50],
            )
            break


def _ratio(step):
    """How far a step moved the parameters, by their size; None where it is not known."""
    update = step["update"] or {}
    moved, size = number(update.get("moved")), number(update.get("size"))
    return moved / size if size > 0 and math.isfinite(moved) else None


def _has_closure(steps, step):
    """Did the optimizer call backward itself?"""
    inside = False
    for e in steps.events:
        if e["what"] == "step" and (e["ordinal"], e["step"]) == (step["ordinal"], step["step"]):
            inside = True
        elif inside and e["what"] == "backward":
            return True
        elif inside and e["what"] == "stepped":
            return False
    return False


@check("P12", "learning-rate", "run")
def explosion(run):
    """A bad step by the learning rate; since which step the run was on its way to one of another cause, as its report
    says; else gradients that grew a thousandfold and never came back up to the end of the run, with the last step
    before, and where in the warm-up it was."""
    for alarm in run.caused_by("learning-rate"):
        yield bad(
            f"{run.step(alarm)}: {(alarm.get('cause') or {}).get('text', '')}",
            (alarm.get("fix") or {}).get("text") or "a lower learning rate, or a longer warm-up",
            run.at(alarm),
        )
    grew = [a for a in run.findings if a.get("onset") and run.cause(a) != "learning-rate"]
    for alarm in grew:
        onset = alarm["onset"]
        yield warn(
            f"{run.step(alarm)}: before it, {onset['text']}",
            GO_BACK,
            None,
            step=onset["step"],
            name=onset["name"],
            lr=onset.get("lr"),
        )
    for steps in () if grew else run.optimizers().values():
        sizes = [number(s["grad_absmax"]) for s in steps]
        if found := growth_to_end(sizes):
            begin, before, _ = found
            last, growth = steps[begin], max(s for s in sizes[begin:] if math.isfinite(s)) / before
            if growth < GROWTH:
                continue
            yield warn(
                f"{run.who}the largest gradient grew {growth:.3g} times from step {last['step']} on, at learning rate "
                f"{last['lr']:g}{_warm_up(steps, begin)}",
                GO_BACK,
                None,
                step=last["step"],
                growth=growth,
                lr=last["lr"],
                sizes=[s["grad_absmax"] for s in steps[max(0, begin - 5) :]][:50],
            )


def _warm_up(steps, begin):
    """Where in the course of the learning rate it began."""
    rates = [s["lr"] for s in steps]
    top = rates.index(max(rates))
    if rates[begin] < max(rates[begin:]) or begin and rates[begin - 1] < rates[begin]:
        return ", which was still rising"
    if 0 < top <= begin and rates[0] < rates[top]:
        return f", {steps[begin]['step'] - steps[top]['step']} steps after it had risen to {rates[top]:g}"
    return ""
