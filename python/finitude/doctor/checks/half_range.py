"""float16: too large, or too small?"""

from ..facts import number
from ..registry import bad, check, warn

FLOAT16_MAX = 65504.0


@check("P10", "fp16-range", "steps")
def headroom(steps):
    """Activations in float16 within a factor of two of 65504, or beyond it; a loss scale below 1."""
    # Only of layers with weights: what has none may well be a mask.
    half = [layer for layer in steps.layers if layer["dtype"] == "float16" and layer["weights"]]
    over = [layer for layer in half if layer["inf"]]
    near = [layer for layer in half if FLOAT16_MAX / 2 <= number(layer["absmax"])]
    advice = "bfloat16, or this block in float32 by torch.autocast(..., enabled=False)"
    if over:
        yield bad(f"{over[0]['name'] or over[0]['class']} exceeds 65504 in float16: {over[0]['inf']} Inf in its output", advice,
                  steps.at(over[0]), layer=over[0]["name"])
    elif near:
        worst = max(near, key=lambda layer: number(layer["absmax"]))
        yield warn(f"{worst['name'] or worst['class']} reaches {number(worst['absmax']):.4g} in float16, of 65504", advice,
                   steps.at(worst), layer=worst["name"])
    scales = [e for e in steps.of("scale") if e["scale"] < 1]
    if scales:
        yield bad(f"the loss scale is {scales[0]['scale']:g}: no scale below 1 makes room for an activation that overflows",
                  "look for the overflow in the forward pass", steps.at(scales[0]))


@check("P10", "fp16-range", "run")
def scale_collapse(run):
    """A bad step by overflow in half precision or by a loss scale that collapsed; more than 20 steps and a tenth of all that a
    GradScaler skipped."""
    for alarm in run.caused_by("half-precision-overflow", "loss-scale-misuse"):
        make = bad if alarm in run.alarms else warn
        yield make(f"step {alarm.get('step')}: {(alarm.get('cause') or {}).get('text', '')}",
                   (alarm.get("fix") or {}).get("text") or "bfloat16, or the block that overflows in float32", run.at(alarm))
    skips, steps = run.watched("scaler_skips"), run.watched("steps")
    if skips > 20 and skips > 0.1 * (skips + steps):
        yield warn(f"the GradScaler skipped {skips} of {skips + steps} steps: more than finding its scale takes",
                   "an activation overflows whatever the scale is: bfloat16, or that block in float32", None, skips=skips)
