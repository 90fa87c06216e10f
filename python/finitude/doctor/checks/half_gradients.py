"""Gradients that become zero in float16."""

from ..registry import bad, check, warn

RISE = 0.1  # of the share of zeros, from the first step seen to the last
SMALL = 1024  # a scale that a GradScaler begins far above
SHARE = 0.25  # of the gradient elements below float16's normal range: then the scale matters to what is learned


@check("P5", "fp16-needs-scaler", "source")
def no_scaler(source):
    """float16 autocast in a script that calls backward and makes no GradScaler."""
    if not source.trains() or source.scalers() or source.says("GradScaler"):
        return
    for call, dtype in source.autocasts():
        if dtype == "float16" and not _without_gradients(call):
            yield warn(
                "float16 autocast without a GradScaler: small gradients become zero",
                "torch.amp.GradScaler, or dtype=torch.bfloat16, which needs none",
                call.at,
            )
            return


def _without_gradients(call):
    import ast

    for parent in call.parents():
        names = (
            [ast.unparse(i.context_expr) for i in parent.items]
            if isinstance(parent, (ast.With, ast.AsyncWith))
            else [ast.unparse(d) for d in parent.decorator_list]
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef))
            else []
        )
        if any("no_grad" in n or "inference_mode" in n for n in names):
            return True
    return False


@check("P5", "fp16-needs-scaler", "steps")
def flushed(steps):
    """A training step through float16 autocast whose loss was not scaled, with the shares of zeros and small values by
    parameter; an error where a quarter of the gradient elements lie below float16's normal range, or the zeros rise by
    a tenth over the steps seen; a loss scale too small to keep a quarter of them out of there."""
    if "float16" not in steps.autocast_dtypes() or not steps.steps:
        return
    region = next(a for a in steps.training_autocast() if a["dtype"] == "float16")
    seen = steps.by_optimizer()[steps.steps[-1]["ordinal"]]
    first, last = _shares(seen[0]), _shares(seen[-1])
    if not last:
        return
    tiny, zero = last
    rise = zero - first[1] if first else 0.0
    worst = sorted(
        (p for p in seen[-1]["parameters"] if p["grad"] and p["grad"]["numel"]), key=lambda p: -p["grad"]["tiny"]
    )[:5]
    evidence = {
        "tiny": tiny,
        "zero": zero,
        "zero_before": first[1] if first else None,
        "scale": seen[-1]["scale"] if steps.of("scale") else None,
        "parameters": [
            {"name": p["name"], "tiny": p["grad"]["tiny"], "zero": p["grad"]["zero"] / p["grad"]["numel"]}
            for p in worst
        ],
    }
    shares = (
        f"{100 * tiny:.0f} % of the gradient elements are below its normal range (most in {worst[0]['name']}) and "
        f"{100 * zero:.0f} % are zero"
    )
    if rise >= RISE:
        shares += f", {100 * first[1]:.0f} % in the first step"
    if not steps.of("scale"):
        make = bad if tiny >= SHARE or rise >= RISE else warn
        yield make(
            f"the loss is not scaled though autocast computes in float16: {shares}",
            "torch.amp.GradScaler, or dtype=torch.bfloat16",
            steps.at(region),
            **evidence,
        )
    elif tiny >= SHARE and seen[-1]["scale"] < SMALL:
        yield warn(
            f"the loss scale is {seen[-1]['scale']:g}, too small for float16: times that, {shares}",
            "torch.amp.GradScaler with its init_scale of 65536, or dtype=torch.bfloat16",
            steps.at(region),
            **evidence,
        )


def _shares(step):
    """(elements below float16's normal range at the scale of the step, zeros), of all; None where there are no
    gradients."""
    grads = [p["grad"] for p in step["parameters"] if p["grad"] and p["grad"]["numel"]]
    total = sum(g["numel"] for g in grads)
    return (
        (sum(g["tiny"] * g["numel"] for g in grads) / total, sum(g["zero"] for g in grads) / total) if total else None
    )


@check("P5", "fp16-needs-scaler", "run")
def underflow(run):
    """A bad step, or gradients that all became zero, by underflow in half precision."""
    for alarm in run.caused_by("half-precision-underflow"):
        yield bad(
            f"{run.step(alarm)}: {(alarm.get('cause') or {}).get('text') or alarm.get('text', '')}",
            "a GradScaler, or bfloat16; an epsilon has to be representable in the dtype it is added in",
            run.at(alarm),
        )
