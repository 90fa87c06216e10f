"""Logits of the loss that drift."""

from ..facts import number
from ..registry import bad, check, warn

LARGE = 80.0   # exp of it is past half of float32's range on a logarithmic scale; at initialisation the logarithm of the classes is usual
SOFTMAX = ("exp", "softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "cross_entropy_loss", "nll_loss")


@check("P15", "output-logits", "steps")
def normaliser(steps):
    """A softmax normaliser (logsumexp of the logits) beyond 80 in the first steps, or one that grew fourfold over them to 20."""
    found = [(number(loss["logsumexp_max"]), loss) for loss in steps.losses if loss["kind"] == "logits"]
    if not found:
        return
    largest, where = max(found, key=lambda f: f[0])
    first, last = found[0][0], found[-1][0]
    advice = "z-loss (1e-4 times the square of logsumexp), the head in float32, smaller initial values"
    if largest > LARGE:
        yield warn(f"the logsumexp of the logits reaches {largest:.4g} in the first steps", advice, steps.at(where), logsumexp=largest)
    elif len(found) >= 4 and last > 20 and last > 4 * first:
        yield warn(f"the logsumexp of the logits went from {first:.3g} to {last:.3g} in the first steps", advice, steps.at(where))


@check("P15", "output-logits", "run")
def overflow(run):
    """A bad step born in an exponential or softmax that was given values beyond 80."""
    for alarm in run.alarms:
        birth = run.birth(alarm)
        sizes = [number(s.get("max")) for s in birth.get("inputs") or [] if isinstance(s, dict)]
        if str(birth.get("op", "")).split("::")[-1] in SOFTMAX and any(s > LARGE for s in sizes):
            yield bad(f"step {alarm['step']}: {birth['op']} was given values up to {max(s for s in sizes if s > LARGE):.4g}",
                      "log_softmax or logsumexp instead of exp; z-loss against logits that grow", run.at(alarm))
