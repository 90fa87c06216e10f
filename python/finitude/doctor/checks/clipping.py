"""Clipping that does what it is for."""

import math

from ..facts import number
from ..registry import bad, check, note, warn

ENOUGH, ALWAYS = 20, 0.95
OFF = 0.05  # a norm that is off by so much is no rounding of float32
SPIKE = 20.0  # times the median norm
RING_SPIKE = 100.0  # of the largest gradient alone, which is noisier
COEFFICIENTS = (
    (1.0, "not clipped"),
    (0.5, "0.5 to 1"),
    (0.1, "0.1 to 0.5"),
    (0.01, "0.01 to 0.1"),
    (0.0, "below 0.01"),
)


@check("P13", "clipping", "steps")
def as_called(steps):
    """A norm that overflowed though every gradient is finite, so that clipping zeroes them; one that half precision got
    wrong; an Inf gradient that clipping turns to NaN and that is applied; clipping after the step or without gradients;
    with `--steps 20` and more, over 95 % of the steps clipped, with the coefficients and who makes the norm, or norms
    that spike while nothing clips."""
    stepped, reported, clips = set(), set(), []
    given, ruin = None, None
    for e in steps.events:
        if e["what"] == "before-clip":
            given = e
        elif e["what"] == "clip":
            if e["by"] == "norm" and given:
                clips.append((e, given))
                ruin = (e, given) if not given["finite"] and not math.isfinite(number(e["norm"])) else None
            for kind, finding in _one_call(steps, e, given, stepped):
                if kind not in reported:
                    reported.add(kind)
                    yield finding
        elif e["what"] == "step":
            now = next(s for s in steps.steps if (s["ordinal"], s["step"]) == (e["ordinal"], e["step"]))
            stepped |= set(now["owned"])
            if ruin and set(ruin[0]["owned"]) & set(now["owned"]) and "ruin" not in reported:
                reported.add("ruin")
                who = ", ".join(ruin[1]["bad"][:3]) or "a gradient"
                yield bad(
                    f"the norm was {ruin[0]['norm']} because {who} is not finite; clipping by it "
                    "makes Inf NaN and every other gradient 0 "
                    "or NaN, and that was applied",
                    "clip_grad_norm_(..., error_if_nonfinite=True), or skip the step where the norm is not finite",
                    steps.at(ruin[0]),
                    parameters=ruin[1]["bad"],
                )
            ruin = None
        elif e["what"] == "backward":
            stepped = set()
    yield from _over_time(steps, clips)


def _one_call(steps, e, given, stepped):
    norm = number(e["norm"])
    if e["by"] == "norm" and given:
        exact = number(given["exact"])
        if not math.isfinite(norm) and given["finite"] and e["gradients"]:
            yield (
                "overflow",
                bad(
                    "the gradient norm overflowed though every gradient is finite (it is "
                    f"{exact:.4g} in float64); clipping "
                    "by it sets them to zero",
                    "gradients near 1e19 have squares beyond float32: divide the loss, or clip by value",
                    steps.at(e),
                    exact=exact,
                    top=given["top"],
                ),
            )
        elif e["norm_type"] == 2.0 and given["finite"] and exact > 0 and abs(norm - exact) > OFF * exact:
            yield (
                "wrong",
                warn(
                    f"the norm came out as {norm:.4g}, it is {exact:.4g} in float64 "
                    f"({', '.join(given['dtypes'])} gradients)",
                    "compute the norm in float32",
                    steps.at(e),
                    norm=norm,
                    exact=exact,
                    dtypes=given["dtypes"],
                ),
            )
    if not e["gradients"] and e["parameters"]:
        yield (
            "none",
            warn("clipped where no parameter has a gradient", "clip after backward() and before step()", steps.at(e)),
        )
    elif stepped & set(e["owned"]):
        yield (
            "after",
            warn(
                "gradients are clipped after the optimizer has used them",
                "clip after backward() and before step()",
                steps.at(e),
            ),
        )


def _over_time(steps, clips):
    coefficients = [
        (min(1.0, number(e["max_norm"]) / number(e["norm"])) if number(e["norm"]) > 0 else 1.0, e, given)
        for e, given in clips
        if math.isfinite(number(e["norm"]))
    ]
    clipped = [one for one in coefficients if one[0] < 1.0]
    if len(clips) >= ENOUGH and len(clipped) > ALWAYS * len(clips):
        norms = sorted(number(e["norm"]) for _, e, _ in coefficients)
        histogram = dict.fromkeys((name for _, name in COEFFICIENTS), 0)
        for c, _, _ in coefficients:
            histogram[next(name for least, name in COEFFICIENTS if c >= least)] += 1
        _, e, given = min(clipped, key=lambda one: one[0])
        share = (
            f"; {given['top'][0]['name']} makes {100 * _share(given):.0f} % of the largest"
            if given["top"] and given["exact"]
            else ""
        )
        yield warn(
            f"{len(clipped)} of {len(clips)} steps were clipped, at a median norm of "
            f"{norms[len(norms) // 2]:.3g}{share}: a sign of "
            "something else",
            "look at the learning rate, the initial values and which layer makes the norm",
            steps.at(clipped[0][1]),
            median=norms[len(norms) // 2],
            coefficients=histogram,
            top=given["top"],
        )
    if not steps.of("clip"):
        yield from _spikes(steps)


def _share(given):
    """Of the squared norm, the part of the parameter that makes most of it."""
    return min(1.0, (number(given["top"][0]["norm"]) / number(given["exact"])) ** 2)


def _spikes(steps):
    for seen in steps.by_optimizer().values():
        norms = [math.sqrt(sum(number(p["grad"]["norm"]) ** 2 for p in s["parameters"] if p["grad"])) for s in seen]
        finite = sorted(n for n in norms if math.isfinite(n))
        median = finite[len(finite) // 2] if len(finite) >= ENOUGH else 0.0
        if median > 0 and finite[-1] > SPIKE * median:
            step = seen[norms.index(finite[-1])]
            yield note(
                f"the gradient norm is {finite[-1]:.3g} in step {step['step']} of "
                f"{step['optimizer']}, {finite[-1] / median:.3g} times "
                f"its median over {len(seen)} steps, and nothing clips it",
                f"clip_grad_norm_(parameters, {2 * median:.1g})",
                steps.at(step),
                norm=finite[-1],
                median=median,
            )


@check("P13", "clipping", "run")
def norm_overflow(run):
    """Gradients that an infinite or overflowed norm made zero or NaN; single steps whose largest gradient is a hundred
    times the median."""
    for found in run.caused_by("clipping"):
        make = bad if found in run.alarms else warn
        yield make(
            f"{run.step(found)}: {found.get('text') or (found.get('cause') or {}).get('text', '')}",
            (found.get("fix") or {}).get("text") or "clip in float32; skip the step where a gradient is not finite",
            run.at(found),
        )
    for ring in run.optimizers().values():
        sizes = [
            (number(s["grad_absmax"]), s["step"])
            for s in ring
            if s["applied"] and math.isfinite(number(s["grad_absmax"]))
        ]
        median = sorted(sizes)[len(sizes) // 2][0] if len(sizes) >= 100 else 0.0
        spikes = [
            i
            for i in range(1, len(sizes) - 1)
            if median > 0
            and sizes[i][0] > RING_SPIKE * median
            and max(sizes[i - 1][0], sizes[i + 1][0]) < RING_SPIKE / 5 * median
        ]
        if spikes:
            size, step = max(sizes[i] for i in spikes)
            yield note(
                f"{run.who}the largest gradient of {len(spikes)} single steps spikes, to {size:.3g} "
                f"in step {step} at a median of "
                f"{median:.3g}",
                "clip_grad_norm_ limits what one batch does to the weights; finitude run reports the largest gradient "
                "before it is clipped",
                None,
                steps=[sizes[i][1] for i in spikes][:50],
                median=median,
            )
