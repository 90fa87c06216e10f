"""Operations outside their domain."""

from __future__ import annotations

import ast
import math
import sys

from ..facts import number
from ..registry import bad, check, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ARITHMETIC = (
    "log-of-zero",
    "log-of-negative",
    "exp-overflow",
    "overflow",
    "division-by-zero",
    "zero-times-infinity",
    "infinity-minus-infinity",
    "underflow",
    "variance-of-one",
    "domain-edge",
    "negative-domain",
    "degenerate-linalg",
    "infeasible-ctc",
    "wrong-backward",
)
LIMITS = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": sys.float_info.max,
}
# Where no fix was found for this very step.
REMEDIES = {
    "log-of-zero": "log_softmax or logsigmoid; else clamp(min=1e-12) before the logarithm",
    "log-of-negative": "clamp(min=1e-12) before the logarithm; look why it is negative",
    "exp-overflow": "logsumexp, softplus or a clamp before exp",
    "overflow": "divide before multiplying; logarithms of products; a clamp",
    "division-by-zero": "an epsilon in the denominator, or where() on both sides of the division",
    "zero-times-infinity": "where() before the product",
    "infinity-minus-infinity": "subtract the largest value first; logsumexp",
    "underflow": "an epsilon that the dtype can hold; logarithms instead of products",
    "variance-of-one": "correction=0, or no spread of a single element",
    "domain-edge": "an epsilon inside the root, norm or inverse function: its slope is infinite at the edge",
    "negative-domain": "clamp(min=1e-12) before the root, as at 0 its slope is infinite; look why it is negative",
    "degenerate-linalg": "add a small multiple of the identity; solve instead of inverting",
    "infeasible-ctc": "zero_infinity=True, and no target longer than its input",
    "wrong-backward": "torch.autograd.gradcheck on the function",
}
SQUASHED = {
    "softmax": "log_softmax, or cross_entropy on the logits",
    "sigmoid": "logsigmoid, or binary_cross_entropy_with_logits",
}


def _squashed(file, node):
    """ "softmax" or "sigmoid" where the expression is the plain output of one."""
    node = file.value(node)
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else file.dotted(node.func).split(".")[-1]
    return (
        name
        if name in SQUASHED and (isinstance(node.func, ast.Attribute) or "torch" in file.dotted(node.func))
        else None
    )


@check("P8", "arithmetic-origin", "source")
def log_of_squashed(source):
    """The logarithm of a plain softmax or sigmoid output, which is 0 as soon as its argument is large."""
    for call in [
        *source.calls("torch.log", "torch.log2", "torch.log10"),
        *(c for c in source.methods("log", "log2", "log10") if not c.name.startswith(("torch.", "math.", "numpy."))),
    ]:
        method = not call.name.startswith("torch.")
        inner = call.node.func.value if method else call.argument("input", 0)
        kind = _squashed(call.file, inner) if inner is not None else None
        if kind:
            yield warn(f"the logarithm of a {kind}: it is -Inf as soon as one output is 0", SQUASHED[kind], call.at)


@check("P8", "arithmetic-origin", "steps")
def first_step_not_finite(steps):
    """A loss or gradient of the first steps that is not finite."""
    step = steps.bad_step()
    if step:
        names = [p["name"] for p in step["parameters"] if p["grad"] and p["grad"]["nan"] + p["grad"]["inf"]]
        what = (
            f"{len(names)} of {len(step['parameters'])} gradients are not finite, {names[0]} among them"
            if names
            else f"the loss is {step['loss']}"
        )
        yield bad(
            f"step {step['step']} of {step['optimizer']}: {what}",
            "finitude run names the operation and line where it was born",
            steps.at(step),
            gradients=names[:20],
            loss=step["loss"],
        )
    elif steps.bad_losses():
        event = steps.bad_losses()[0]
        yield bad(
            f"backward is called on a loss that is {event['loss']}",
            "finitude run names the operation where it was born",
            steps.at(event),
        )


@check("P8", "arithmetic-origin", "run")
def origin(run):
    """A bad step that was born in an operation outside its domain, with what that operation was given and what to use
    instead."""
    for alarm in run.caused_by(*ARITHMETIC):
        birth, fix = run.birth(alarm), alarm.get("fix") or {}
        make = bad if alarm in run.alarms else warn
        given = [_given(s) for s in (birth.get("inputs") or [])[:4] if isinstance(s, dict)]
        details = "; ".join(text for text, _ in given if text)
        yield make(
            f"{run.step(alarm)}: {run.cause(alarm)} in {birth.get('op', '')} {birth.get('source', '')}: "
            f"{(alarm.get('cause') or {}).get('text', '')}" + (f" (given {details})" if details else ""),
            fix.get("text") or REMEDIES.get(run.cause(alarm), ""),
            run.at(alarm),
            inputs=[one for _, one in given],
            first_bad=(birth.get("rows") or [None])[0],
            confidence=(alarm.get("cause") or {}).get("confidence"),
        )


def _given(s):
    """(words, evidence) of an input of the birth: its range and how near it is to the ends of its dtype and domain."""
    limit: Any
    low, high, size, limit = (
        number(s.get("min")),
        number(s.get("max")),
        number(s.get("absmax")),
        LIMITS.get(s.get("dtype")),
    )
    evidence = {**s, "dtype_max": limit, "negative": low < 0, "near_limit": bool(limit and size >= limit / 2)}
    if not s.get("numel") or math.isnan(low):
        return "", evidence
    zeros = f", {s['zero']} zero{'s' * (s['zero'] != 1)}" if s.get("zero") else ""
    near = (
        f", {limit / size:.3g} times below the end of {s.get('dtype')}" if evidence["near_limit"] and size > 0 else ""
    )
    return f"{s.get('arg') or 'input'} {low:.4g} to {high:.4g}{zeros}{near}", evidence
