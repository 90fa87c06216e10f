"""Autocast around the forward pass and the loss, and only there; weights in float32."""

import ast

from ..registry import bad, check, note, warn
from ..source import AUTOCAST


def _in_autocast(call):
    for parent in call.parents():
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            for item in parent.items:
                region = item.context_expr
                if isinstance(region, ast.Call) and call.file.dotted(region.func) in AUTOCAST:
                    on = next((k.value for k in region.keywords if k.arg == "enabled"), None)
                    return not (isinstance(on, ast.Constant) and not on.value)
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
    return False


@check("P4", "autocast-scope", "source")
def backward_inside(source):
    """`backward()` inside an autocast region, and the names of autocast and GradScaler that torch has deprecated."""
    for call in source.methods("backward"):
        if _in_autocast(call):
            yield warn("backward() runs inside autocast", "end the region after the loss: backward takes the dtypes of the forward pass",
                       call.at)
    for call in source.calls("torch.cuda.amp.autocast", "torch.cuda.amp.GradScaler", "torch.cpu.amp.autocast", "torch.cpu.amp.GradScaler"):
        device = call.name.split(".")[1]
        yield note(f"{call.name} is deprecated", f"torch.amp.{call.name.split('.')[-1]}({device!r}, ...)", call.at)


@check("P4", "autocast-scope", "steps")
def what_autocast_meets(steps):
    """backward called while autocast is on; float16 weights given to an optimizer; a thread that computes without the autocast
    that the others have."""
    inside = [e for e in steps.of("backward") if e["autocast"]]
    if inside:
        yield warn("backward ran while autocast was on", "end the region after the loss", steps.at(inside[0]))
    for step in steps.steps[:1]:
        half = [p["name"] for p in step["parameters"] if p["dtype"] == "float16"]
        if half:
            yield bad(f"{len(half)} of {len(step['parameters'])} parameters that {step['optimizer']} updates are float16, {half[0]} among "
                      "them: an update below one part in 2048 is lost, and there is no float32 copy",
                      "keep the model in float32 and compute in half precision by autocast", steps.at(step), parameters=half[:20])
    for event in steps.of("thread-without-autocast")[:1]:
        yield warn(f"{event['module']} computes in a thread that is not in autocast, while another one is: its state is per thread",
                   "enter autocast inside the thread as well", steps.at(event))
