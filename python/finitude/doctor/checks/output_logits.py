"""Logits of the loss that drift."""

import math

from ..facts import number, slope
from ..registry import bad, check, note, warn

# exp of it is past half of float32's range on a logarithmic scale; at initialisation the logarithm of the classes is
# usual
LARGE = 80.0
DRIFT, FIT, HIGH, ENOUGH = 4.0, 0.6, 20.0, 4
MANTISSA = {"float16": 10, "bfloat16": 7}
SOFTMAX = ("exp", "softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "cross_entropy_loss", "nll_loss")
ADVICE = "z-loss (1e-4 times the square of logsumexp), the head in float32, smaller initial values"


@check("P15", "output-logits", "steps")
def normaliser(steps):
    """Logits that a layer in half precision made, so large that neighbours differ by 1/4 and more; a softmax normaliser
    (logsumexp) that grows fourfold to beyond 20 over four and more losses of one line, with the slope; a note on one
    beyond 80, which float32 bears."""
    places = {}
    for loss in steps.losses:
        if loss["kind"] == "logits":
            places.setdefault(tuple(steps.at(loss)), []).append(loss)
    for at, found in places.items():
        series = [number(one["logsumexp_max"]) for one in found]
        worst = max(found, key=lambda one: number(one["logsumexp_max"]))
        largest, absmax = number(worst["logsumexp_max"]), number(worst["absmax"])
        evidence = {
            "logsumexp_max": series[:50],
            "logsumexp_mean": [one["logsumexp_mean"] for one in found][:50],
            "absmax": absmax,
        }
        factor, fit = slope(series)
        made_by = _half_layer(steps, absmax)
        if len(series) >= ENOUGH and series[-1] > HIGH and factor > DRIFT and fit >= FIT:
            yield warn(
                f"the logsumexp of the logits drifts from {series[0]:.3g} to {series[-1]:.3g} over "
                f"{len(series)} losses (mean now "
                f"{number(found[-1]['logsumexp_mean']):.3g}, largest logit {number(found[-1]['absmax']):.3g})",
                ADVICE,
                at,
                slope=math.log(factor) / (len(series) - 1),
                **evidence,
            )
        elif made_by and _step(absmax, made_by["dtype"]) >= 0.25:
            yield warn(
                f"the logits reach {absmax:.4g} in {made_by['dtype']}, of "
                f"{made_by['name'] or made_by['class']}: there neighbouring "
                f"numbers differ by {_step(absmax, made_by['dtype']):g}",
                ADVICE,
                at,
                dtype=made_by["dtype"],
                **evidence,
            )
        elif largest > LARGE:
            yield note(
                f"the logsumexp of the logits reaches {largest:.4g} in the first steps: a fused "
                "cross-entropy in float32 bears it, "
                "exp does not",
                ADVICE,
                at,
                **evidence,
            )


def _half_layer(steps, absmax):
    """The layer in half precision whose output these logits are: by their size; the loss itself is computed in
    float32."""
    same = [
        one
        for one in steps.layers
        if one["dtype"] in MANTISSA and one["weights"] and math.isclose(number(one["absmax"]), absmax, rel_tol=1e-3)
    ]
    return same[-1] if same else None


def _step(size, dtype):
    """Between neighbouring numbers of this size."""
    return 2.0 ** (math.floor(math.log2(size)) - MANTISSA[dtype]) if size > 0 else 0.0


@check("P15", "output-logits", "run")
def overflow(run):
    """A bad step born in an exponential or softmax that was given values beyond 80."""
    for alarm in run.findings:
        birth = run.birth(alarm)
        sizes = [number(s.get("max")) for s in birth.get("inputs") or [] if isinstance(s, dict)]
        if str(birth.get("op", "")).split("::")[-1] in SOFTMAX and any(s > LARGE for s in sizes):
            yield bad(
                f"{run.step(alarm)}: {birth['op']} was given values up to {max(s for s in sizes if s > LARGE):.4g}",
                "log_softmax or logsumexp instead of exp; z-loss against logits that grow",
                run.at(alarm),
                inputs=sizes[:8],
                dtypes=[s.get("dtype") for s in birth["inputs"] if isinstance(s, dict)][:8],
            )
