"""Steps that are too large."""

import math

from ..facts import number
from ..registry import bad, check, warn

MOVED = 10.0          # times the size of the parameters: small initial values move by once or twice their own
LOOKED_BACK = 20      # steps of the ring before its end
GROWTH = 1e3          # of the largest gradient within them


@check("P12", "learning-rate", "steps")
def first_updates(steps):
    """A first update ten times as large as the parameters it is added to, or a loss that grew a thousandfold by one."""
    for first, then in zip(steps.steps, steps.steps[1:]):
        a, b = number(first["loss"]), number(then["loss"])
        if first["ordinal"] == then["ordinal"] and math.isfinite(a) and a > 0 and b > 1e3 * max(a, 1.0):
            yield bad(f"the loss went from {a:.4g} to {b:.4g} in one step at learning rate {first['lr']:g}",
                      "a learning rate 3 to 10 times lower, or a warm-up", steps.at(first))
            return
    for step in steps.steps:
        if step["step"] or _has_closure(steps, step):
            continue  # what began at zero is as small as its first update; a closure's step is several updates
        update = step["update"] or {}
        moved, size = number(update.get("moved")), number(update.get("size"))
        if size > 0 and math.isfinite(moved) and moved > MOVED * size:
            yield warn(f"step {step['step']} of {step['optimizer']} moved the parameters by {moved / size:.3g} times their own size "
                       f"(learning rate {step['lr']:g})", "a lower learning rate, or a warm-up over the first steps", steps.at(step),
                       ratio=moved / size)
            break


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


def onset(ring):
    """(index, growth) of the last step before the largest gradients began to grow without a break to the end, or None."""
    sizes = [number(s["grad_absmax"]) for s in ring]
    end = len(sizes) - 1
    while end >= 0 and not math.isfinite(sizes[end]):
        end -= 1
    begin = end
    while begin > 0 and sizes[begin - 1] < sizes[begin] and end - begin < LOOKED_BACK:
        begin -= 1
    if end - begin < 3 or sizes[begin] <= 0 or sizes[end] < GROWTH * sizes[begin]:
        return None
    return begin, sizes[end] / sizes[begin]


@check("P12", "learning-rate", "run")
def explosion(run):
    """A bad step by the learning rate; gradients that grew a thousandfold without a break up to the end of the run, with the last
    step before."""
    for alarm in run.caused_by("learning-rate"):
        yield bad(f"step {alarm.get('step')}: {(alarm.get('cause') or {}).get('text', '')}",
                  (alarm.get("fix") or {}).get("text") or "a lower learning rate, or a longer warm-up", run.at(alarm))
    for steps in run.optimizers().values():
        if found := onset(steps):
            begin, growth = found
            last = steps[begin]
            rising = last["lr"] < max(s["lr"] for s in steps[begin:]) or begin and steps[begin - 1]["lr"] < last["lr"]
            yield warn(f"the largest gradient grew {growth:.3g} times from step {last['step']} on without a break, at learning rate "
                       f"{last['lr']:g}" + (", which was still rising" if rising else ""),
                       "go back to a checkpoint of before that step, with a lower learning rate or a longer warm-up", None,
                       step=last["step"], growth=growth)
