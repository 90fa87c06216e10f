"""A loss scale where nothing underflows."""

from ..registry import check, note

BEYOND = 2.0**40  # at this scale float16 holds no gradient above 6e-8


@check("P6", "scaler-without-need", "source")
def in_source(source):
    """A GradScaler in a script whose only autocast dtype is bfloat16."""
    dtypes = {d for _, d in source.autocasts()}
    for call, _ in source.scalers():
        if dtypes == {"bfloat16"} and call.argument("enabled") is None:
            yield note(
                "a GradScaler with bfloat16 autocast has no effect but to wait for the device in every step",
                "remove it: bfloat16 has the range of float32",
                call.at,
            )


@check("P6", "scaler-without-need", "steps")
def in_steps(steps):
    """A loss that was scaled after bfloat16 autocast, or after no autocast at all with float32 weights."""
    scaled = steps.of("scale")
    dtypes = steps.autocast_dtypes()
    if scaled and dtypes == {"bfloat16"}:
        yield note(
            "the loss is scaled though autocast computes in bfloat16", "remove the GradScaler", steps.at(scaled[0])
        )
    elif (
        scaled
        and not dtypes
        and steps.steps
        and all(p["dtype"] in ("float32", "float64") for p in steps.steps[0]["parameters"])
    ):
        yield note(
            "the loss is scaled though nothing is computed in half precision",
            "remove the GradScaler, or enter autocast",
            steps.at(scaled[0]),
        )


@check("P6", "scaler-without-need", "run")
def in_a_run(run):
    """A capsule with a loss scale whose step was cast to bfloat16; a loss scale (kept by step, on the CPU) that grew
    beyond 2^40 with no step skipped: float16 would have overflowed."""
    for ring in run.optimizers().values():
        scales = [s["scale"] for s in ring if s.get("scale")]
        if scales and max(scales) >= BEYOND and not any(s.get("scaler_skip") for s in ring):
            yield note(
                f"{run.who}the loss scale is {scales[-1]:g}, and of the last {len(ring)} steps none "
                "was skipped: nothing is computed "
                "in float16, which would have overflowed",
                "remove the GradScaler, or enter autocast in float16",
                None,
                scales=[scales[0], scales[-1]],
            )
            return
    for capsule in run.capsules:
        if run.part(capsule, "start", "scaler") and run.part(capsule, "flags").get("autocast") == "bfloat16":
            yield note(
                f"step {capsule.get('step')}: the loss was scaled though autocast computed in bfloat16",
                "remove the GradScaler: it does nothing there but wait for the device",
                None,
            )
            return
