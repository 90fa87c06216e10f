"""Is the precision the cause, and is float16 needed at all?"""

from ..registry import bad, check, note, warn

HALF = ("half-precision-overflow", "half-precision-underflow")


@check("P1", "precision-fits", "steps")
def float16_without_need(steps):
    """float16 autocast on hardware that computes bfloat16 as fast: the range of float32 is to be had for nothing."""
    for region in steps.training_autocast():
        if region["dtype"] != "float16":
            continue
        if region["device"] == "cuda" and (steps.get("capability") or [0])[0] >= 8:
            yield warn(f"autocast computes in float16 on {steps.device_name}, which computes bfloat16 as fast",
                       "dtype=torch.bfloat16: no overflow at 65504, and no GradScaler is needed", steps.at(region))
            return
        if region["device"] == "cpu":
            yield note("autocast computes in float16 on the CPU; bfloat16 is what autocast takes there by itself",
                       "dtype=torch.bfloat16 unless the same run has to be the one of a GPU without it", steps.at(region))
            return


@check("P1", "precision-fits", "run")
def numerics_or_model(run):
    """A bad step born in half precision, or one that was born in float32 or float64 and that no other precision would cure."""
    for alarm in run.alarms:
        inputs = [s for s in run.birth(alarm).get("inputs") or [] if isinstance(s, dict)]
        dtypes = {s.get("dtype") for s in inputs} - {None}
        if run.cause(alarm) in HALF:
            yield bad(f"step {alarm['step']}: born in {', '.join(sorted(map(str, dtypes))) or 'half precision'}",
                      "bfloat16, or this block in float32: torch.autocast(..., enabled=False)", run.at(alarm), cause=run.cause(alarm))
        elif dtypes and dtypes <= {"float32", "float64"} and run.cause(alarm) != "unknown":
            yield note(f"step {alarm['step']}: born in {', '.join(sorted(map(str, dtypes)))} ({run.cause(alarm)}): "
                       "the model or the data, not the precision", "", run.at(alarm))
