"""Operations outside their domain."""

import ast

from ..registry import bad, check, warn

ARITHMETIC = ("log-of-zero", "log-of-negative", "exp-overflow", "overflow", "division-by-zero", "zero-times-infinity",
              "infinity-minus-infinity", "underflow", "variance-of-one", "domain-edge", "negative-domain", "degenerate-linalg",
              "infeasible-ctc", "wrong-backward")
SQUASHED = {"softmax": "log_softmax, or cross_entropy on the logits", "sigmoid": "logsigmoid, or binary_cross_entropy_with_logits"}


def _squashed(file, node):
    """"softmax" or "sigmoid" where the expression is the plain output of one."""
    node = file.value(node)
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else file.dotted(node.func).split(".")[-1]
    return name if name in SQUASHED and (isinstance(node.func, ast.Attribute) or "torch" in file.dotted(node.func)) else None


@check("P8", "arithmetic-origin", "source")
def log_of_squashed(source):
    """The logarithm of a plain softmax or sigmoid output, which is 0 as soon as its argument is large."""
    for call in [*source.calls("torch.log", "torch.log2", "torch.log10"),
                 *(c for c in source.methods("log", "log2", "log10") if not c.name.startswith(("torch.", "math.", "numpy.")))]:
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
        what = f"{len(names)} of {len(step['parameters'])} gradients are not finite, {names[0]} among them" if names else \
            f"the loss is {step['loss']}"
        yield bad(f"step {step['step']} of {step['optimizer']}: {what}", "finitude run names the operation and line where it was born",
                  steps.at(step), gradients=names[:20], loss=step["loss"])
    elif steps.bad_losses():
        event = steps.bad_losses()[0]
        yield bad(f"backward is called on a loss that is {event['loss']}", "finitude run names the operation where it was born",
                  steps.at(event))


@check("P8", "arithmetic-origin", "run")
def origin(run):
    """A bad step that was born in an operation outside its domain, with what that operation was given and what to use instead."""
    for alarm in run.caused_by(*ARITHMETIC):
        birth, fix = run.birth(alarm), alarm.get("fix") or {}
        make = bad if alarm in run.alarms else warn
        yield make(f"step {alarm.get('step')}: {run.cause(alarm)} in {birth.get('op', '')} {birth.get('source', '')}: "
                   f"{(alarm.get('cause') or {}).get('text', '')}", fix.get("text", ""), run.at(alarm),
                   inputs=(birth.get("inputs") or [])[:4], confidence=(alarm.get("cause") or {}).get("confidence"))
