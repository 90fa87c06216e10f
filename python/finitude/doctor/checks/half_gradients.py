"""Gradients that become zero in float16."""

from ..registry import bad, check, warn

SHARE = 0.25   # of the gradient elements below float16's normal range: then the scale matters to what is learned


@check("P5", "fp16-needs-scaler", "source")
def no_scaler(source):
    """float16 autocast in a script that calls backward and makes no GradScaler."""
    if not source.trains() or source.scalers() or source.says("GradScaler"):
        return
    for call, dtype in source.autocasts():
        if dtype == "float16" and not _without_gradients(call):
            yield warn("float16 autocast without a GradScaler: small gradients become zero",
                       "torch.amp.GradScaler, or dtype=torch.bfloat16, which needs none", call.at)
            return


def _without_gradients(call):
    import ast

    for parent in call.parents():
        names = [ast.unparse(i.context_expr) for i in parent.items] if isinstance(parent, (ast.With, ast.AsyncWith)) else \
            [ast.unparse(d) for d in parent.decorator_list] if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        if any("no_grad" in n or "inference_mode" in n for n in names):
            return True
    return False


@check("P5", "fp16-needs-scaler", "steps")
def flushed(steps):
    """A training step through float16 autocast whose loss was not scaled; an error where a quarter of the gradient elements lie
    below float16's normal range."""
    if "float16" not in steps.autocast_dtypes() or steps.of("scale") or not steps.steps:
        return
    region = next(a for a in steps.training_autocast() if a["dtype"] == "float16")
    grads = [p["grad"] for p in steps.steps[-1]["parameters"] if p["grad"] and p["grad"]["numel"]]
    total = sum(g["numel"] for g in grads)
    if not total:
        return
    tiny = sum(g["tiny"] * g["numel"] for g in grads) / total
    zero = sum(g["zero"] for g in grads) / total
    make = bad if tiny >= SHARE else warn
    yield make(f"the loss is not scaled though autocast computes in float16: {100 * tiny:.0f} % of the gradient elements are below its "
               f"normal range and {100 * zero:.0f} % are zero", "torch.amp.GradScaler, or dtype=torch.bfloat16",
               steps.at(region), tiny=tiny, zero=zero)


@check("P5", "fp16-needs-scaler", "run")
def underflow(run):
    """A bad step, or gradients that all became zero, by underflow in half precision."""
    for alarm in run.caused_by("half-precision-underflow"):
        yield bad(f"step {alarm.get('step')}: {(alarm.get('cause') or {}).get('text') or alarm.get('text', '')}",
                  "a GradScaler, or bfloat16; an epsilon has to be representable in the dtype it is added in", run.at(alarm))
