"""float16: too large, or too small?"""

from ..facts import number
from ..registry import bad, check, note, warn

FLOAT16_MAX = 65504.0
IN_A_ROW, FOUND_BY = (
    20,
    16,
)  # skips: those it takes from 2**40 to a scale that fits; skips in a row that are still a search
TOP, UNDERFLOW = 2.0**16, 0.5
ADVICE = "bfloat16, or this block in float32 by torch.autocast(..., enabled=False)"


@check("P10", "fp16-range", "steps")
def headroom(steps):
    """Activations in float16 within a factor of two of 65504, or beyond it; the loss scale with its history: below 1,
    or falling with every step skipped, which is overflow; at 65536 or more while half of the gradient elements still
    underflow."""
    # Only of layers with weights: what has none may well be a mask.
    half = [layer for layer in steps.layers if layer["dtype"] == "float16" and layer["weights"]]
    over = [layer for layer in half if layer["inf"]]
    worst = max(half, key=lambda layer: number(layer["absmax"]), default=None)
    room = {"headroom": FLOAT16_MAX / number(worst["absmax"])} if worst and number(worst["absmax"]) > 0 else {}
    if over:
        yield bad(
            f"{over[0]['name'] or over[0]['class']} exceeds 65504 in float16: {over[0]['inf']} Inf in its output",
            ADVICE,
            steps.at(over[0]),
            layer=over[0]["name"],
        )
    elif worst and FLOAT16_MAX / 2 <= number(worst["absmax"]):
        yield warn(
            f"{worst['name'] or worst['class']} reaches {number(worst['absmax']):.4g} in float16, of 65504",
            ADVICE,
            steps.at(worst),
            layer=worst["name"],
            **room,
        )
    yield from _scale(steps, over, worst, room)


def _scale(steps, over, worst, room):
    history = [e["scale"] for e in steps.of("scale")]
    if not history:
        return
    skips = skipped(steps.events)
    run = 0
    for taken in reversed(skips):
        if taken:
            break
        run += 1
    evidence = {"scales": history[-50:], "skipped": skips.count(False), "in_a_row": run, **room}
    where = (
        f"; {over[0]['name'] or over[0]['class']} overflows in the forward pass"
        if over
        else f"; the largest activation, of {worst['name'] or worst['class']}, is {number(worst['absmax']):.4g}"
        if worst
        else ""
    )
    low = next((e for e in steps.of("scale") if e["scale"] < 1), None)
    if low or run > FOUND_BY:
        at = low or steps.of("scale")[-1]
        yield bad(
            f"the loss scale went from {history[0]:g} to {history[-1]:g}, the last {run} steps "
            "skipped: no scale makes room for an "
            f"activation that overflows{where}",
            "look for the overflow in the forward pass; " + ADVICE,
            steps.at(at),
            **evidence,
        )
    elif steps.steps and history[-1] >= TOP:
        tiny = _tiny(steps.steps[-1])
        if tiny >= UNDERFLOW:
            yield note(
                f"{100 * tiny:.0f} % of the gradient elements are below float16's normal range even at a loss scale of "
                f"{history[-1]:g}: underflow",
                "bfloat16, which has the range for it",
                steps.at(steps.of("scale")[-1]),
                tiny=tiny,
                **evidence,
            )


def _tiny(step):
    """Share of the gradient elements that float16 does not hold in full at the scale of the step."""
    grads = [p["grad"] for p in step["parameters"] if p["grad"] and p["grad"]["numel"]]
    total = sum(g["numel"] for g in grads)
    return sum(g["tiny"] * g["numel"] for g in grads) / total if total else 0.0


def skipped(events):
    """For each scaler.step, in order: did it step the optimizer?"""
    out = []
    for e in events:
        if e["what"] == "scaler.step":
            out.append(False)
        elif e["what"] == "step" and out:
            out[-1] = True
    return out


@check("P10", "fp16-range", "run")
def scale_collapse(run):
    """A bad step by overflow in half precision or by a loss scale that collapsed; more than 20 steps and a tenth of all
    that a GradScaler skipped, or more than 20 in a row; a capsule whose loss scale is below 1. The loss scale by step,
    where the ring has it (on the CPU): below 1, or lower with every step of the last 17 and more skipped, which is
    overflow."""
    for alarm in run.caused_by("half-precision-overflow", "loss-scale-misuse"):
        make = bad if alarm in run.alarms else warn
        largest = max(
            (number(s.get("absmax")) for s in run.birth(alarm).get("inputs") or [] if isinstance(s, dict)), default=0.0
        )
        yield make(
            f"{run.step(alarm)}: {(alarm.get('cause') or {}).get('text', '')}",
            (alarm.get("fix") or {}).get("text") or "bfloat16, or the block that overflows in float32",
            run.at(alarm),
            headroom=FLOAT16_MAX / largest if largest > 0 else None,
        )
    for capsule in run.capsules:
        scale = run.part(capsule, "start", "scaler").get("scale")
        if isinstance(scale, (int, float)) and 0 < scale < 1:
            yield bad(f"step {capsule.get('step')}: the loss scale had fallen to {scale:g}", ADVICE, None, scale=scale)
            break
    yield from _scales(run)
    skips, steps = run.watched("scaler_skips"), run.watched("steps")
    if skips > IN_A_ROW and skips > 0.1 * (skips + steps):
        yield warn(
            f"the GradScaler skipped {skips} of {skips + steps} steps: more than finding its scale takes",
            "an activation overflows whatever the scale is: bfloat16, or that block in float32",
            None,
            skips=skips,
        )
    elif skips > IN_A_ROW and (longest := _longest(run)) > IN_A_ROW:
        yield warn(
            f"{run.who}{longest} steps in a row were skipped under a GradScaler: more than finding its scale takes",
            "an activation overflows whatever the scale is: bfloat16, or that block in float32",
            None,
            in_a_row=longest,
        )


def _scales(run):
    for ring in run.optimizers().values():
        scales = [s["scale"] for s in ring if s.get("scale")]
        last = 0
        for s in reversed(ring):
            if s["applied"] or not s.get("scale"):
                break
            last += 1
        falls = last > FOUND_BY and scales[-1] < scales[-last]
        if scales and (min(scales) < 1 or falls):
            low = min(scales)
            left_out = f", the last {last} steps skipped" if last > 1 else ""
            yield bad(
                f"{run.who}the loss scale went from {scales[0]:g} to {scales[-1]:g}"
                + (f", as low as {low:g}" if low < scales[-1] else "")
                + f"{left_out}: no scale makes room for an activation that overflows",
                "look for the overflow in the forward pass; " + ADVICE,
                None,
                scales=scales[-50:],
                in_a_row=last,
            )
            return


def _longest(run):
    best = 0
    for ring in run.optimizers().values():
        now = 0
        for s in ring:
            now = 0 if s["applied"] else now + 1
            best = max(best, now)
    return best
