"""Clipping that does what it is for."""

import math

from ..facts import number
from ..registry import bad, check, warn

ENOUGH, ALWAYS = 20, 0.95


@check("P13", "clipping", "steps")
def as_called(steps):
    """A norm that overflowed though every gradient is finite, so that clipping zeroes them; clipping after the step or without
    gradients; with `--steps 20` and more, over 95 % of the steps clipped."""
    stepped, told = set(), set()
    finite = True
    norms = []
    for e in steps.events:
        if e["what"] == "before-clip":
            finite = e["finite"]
        elif e["what"] == "clip":
            norm, limit = number(e.get("norm")), number(e["max_norm"])
            if e["by"] == "norm":
                norms.append((norm, limit, e))
                if not math.isfinite(norm) and finite and e["gradients"] and "overflow" not in told:
                    told.add("overflow")
                    yield bad("the gradient norm overflowed though every gradient is finite; clipping by it sets them to zero",
                              "gradients near 1e19 have squares beyond float32: divide the loss, or clip by value", steps.at(e))
            if not e["gradients"] and e["parameters"] and "none" not in told:
                told.add("none")
                yield warn("clipped where no parameter has a gradient", "clip after backward() and before step()", steps.at(e))
            elif stepped & set(e["owned"]) and "after" not in told:
                told.add("after")
                yield warn("gradients are clipped after the optimizer has used them", "clip after backward() and before step()", steps.at(e))
        elif e["what"] == "step":
            now = next(s for s in steps.steps if (s["ordinal"], s["step"]) == (e["ordinal"], e["step"]))
            stepped |= set(now["owned"])
        elif e["what"] == "backward":
            stepped = set()
    clipped = [e for norm, limit, e in norms if norm > limit]
    if len(norms) >= ENOUGH and len(clipped) > ALWAYS * len(norms):
        median = sorted(n for n, _, _ in norms)[len(norms) // 2]
        yield warn(f"{len(clipped)} of {len(norms)} steps were clipped, at a median norm of {median:.3g}: a sign of something else",
                   "look at the learning rate, the initial values and which layer makes the norm", steps.at(clipped[0]), median=median)


@check("P13", "clipping", "run")
def norm_overflow(run):
    """Gradients that an infinite or overflowed norm made zero or NaN."""
    for found in run.caused_by("clipping"):
        make = bad if found in run.alarms else warn
        yield make(f"step {found.get('step')}: {found.get('text') or (found.get('cause') or {}).get('text', '')}",
                   (found.get("fix") or {}).get("text") or "clip in float32; leave the step out where a gradient is not finite", run.at(found))
