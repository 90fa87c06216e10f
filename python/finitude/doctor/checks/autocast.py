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
            yield warn(
                "backward() runs inside autocast",
                "end the region after the loss: backward takes the dtypes of the forward pass",
                call.at,
            )
    for call in source.calls(
        "torch.cuda.amp.autocast", "torch.cuda.amp.GradScaler", "torch.cpu.amp.autocast", "torch.cpu.amp.GradScaler"
    ):
        device = call.name.split(".")[1]
        yield note(f"{call.name} is deprecated", f"torch.amp.{call.name.split('.')[-1]}({device!r}, ...)", call.at)


LOST = 0.5  # of the elements with a gradient: then most of what is learned is rounded away
PARTS = {"float16": 2048, "bfloat16": 256}


def _half_weights(steps):
    for seen in steps.by_optimizer().values():
        step = seen[0]
        half = [p for p in step["parameters"] if p["dtype"] in PARTS]
        if not half:
            continue
        update = step["update"] or {}
        had, still = update.get("half_elements") or 0, update.get("half_unmoved") or 0
        lost = still / had if had else 0.0
        kinds = sorted({p["dtype"] for p in half})
        kept = f"; its first update left {100 * lost:.0f} % of the elements with a gradient as they were" if had else ""
        make = bad if "float16" in kinds else warn if lost >= LOST else note
        yield make(
            f"{len(half)} of {len(step['parameters'])} parameters that {step['optimizer']} updates "
            f"are {' and '.join(kinds)}, "
            f"{half[0]['name']} among them: an update below one part in {PARTS[kinds[-1]]} is lost, "
            f"and there is no float32 copy{kept}",
            "keep the model in float32 and compute in half precision by autocast",
            steps.at(step),
            parameters=[p["name"] for p in half][:20],
            lost=lost,
        )
        return


@check("P4", "autocast-scope", "steps")
def what_autocast_meets(steps):
    """backward called while autocast is on, however it was switched on; weights in half precision that an optimizer
    updates without a float32 copy, with the share of their elements that an update did not change; a thread that
    computes without the autocast that the others have; deprecated autocast as it is entered."""
    inside = [e for e in steps.of("backward") if e["autocast"]]
    if inside:
        yield warn("backward ran while autocast was on", "end the region after the loss", steps.at(inside[0]))
    yield from _half_weights(steps)
    for region in steps.autocast:
        if region["deprecated"]:
            yield note(
                "autocast is entered by a name that torch has deprecated",
                f"torch.amp.autocast({region['device']!r}, ...)",
                steps.at(region),
            )
            break
    for event in steps.of("thread-without-autocast")[:1]:
        yield warn(
            f"{event['module']} computes in a thread that is not in autocast, while another one is: "
            "its state is per thread",
            "enter autocast inside the thread as well",
            steps.at(event),
        )
