"""Tools for looking that were left on, or that look past the place."""

import ast

from ..registry import check, note, warn

NAMES = ("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly",
         "torch.autograd.anomaly_mode.detect_anomaly")
PREDICATES = ("isnan", "isfinite", "isinf")


@check("P9", "anomaly-mode-left-on", "source")
def left_on(source):
    """Anomaly mode switched on without a condition; a forward hook that tests for NaN, which sees outputs of modules only."""
    for call in source.calls(*NAMES):
        mode = call.argument("mode", 0) if call.name.endswith("set_detect_anomaly") else None
        off_or_choice = mode is not None and not (isinstance(mode, ast.Constant) and mode.value)
        if not off_or_choice and not call.is_conditional():
            yield warn("anomaly mode is on in every step, which makes each several times slower, and sees NaN in backward only",
                       "remove it: finitude run looks when there is something to look at", call.at)
    for call in source.methods("register_forward_hook"):
        hook = call.argument("hook", 0)
        if isinstance(hook, ast.Name):
            hook = next((n for n in ast.walk(call.file.tree) if isinstance(n, ast.FunctionDef) and n.name == hook.id), None)
        if hook is not None and any(isinstance(n, ast.Attribute) and n.attr in PREDICATES for n in ast.walk(hook)):
            yield note("a forward hook tests for NaN: it sees what modules return, neither functional calls between them nor backward, "
                       "and waits for the device each time", "finitude run sees every operation of a bad step", call.at)


@check("P9", "anomaly-mode-left-on", "steps")
def on_at_the_step(steps):
    """Anomaly mode is on when the optimizer steps."""
    if steps.get("anomaly"):
        yield warn("anomaly mode is on in the training steps", "remove it for the real run")
