"""Is the precision the cause, and is float16 needed at all?"""

from ..registry import bad, check, note, warn

HALF = ("half-precision-overflow", "half-precision-underflow")


@check("P1", "precision-fits", "steps")
def float16_without_need(steps):
    """float16 autocast on hardware that computes bfloat16 as fast: the range of float32 is to be had for nothing."""
    for region in steps.training_autocast():
        if region["dtype"] != "float16":
            continue
        evidence = _dtypes(steps)
        if region["device"] == "cuda" and (steps.get("capability") or [0])[0] >= 8:
            yield warn(
                f"autocast computes in float16 on {steps.device_name}, which computes bfloat16 as fast",
                "dtype=torch.bfloat16: no overflow at 65504, and no GradScaler is needed",
                steps.at(region),
                **evidence,
            )
            return
        if region["device"] == "cpu":
            yield note(
                "autocast computes in float16 on the CPU; bfloat16 is what autocast takes there by itself",
                "dtype=torch.bfloat16 unless the same run has to be the one of a GPU without it",
                steps.at(region),
                **evidence,
            )
            return


def _dtypes(steps):
    parameters = [p for s in steps.get("steps") or [] for p in s["parameters"]]
    return {
        "device": steps.device_name,
        "capability": steps.get("capability"),
        "scaled": bool(steps.get("events") and steps.of("scale")),
        "autocast": sorted(steps.autocast_dtypes()),
        "parameters": sorted({p["dtype"] for p in parameters}),
        "gradients": sorted({p["grad"]["dtype"] for p in parameters if p["grad"]}),
    }


@check("P1", "precision-fits", "run")
def numerics_or_model(run):
    """A bad step born in half precision; one that is bad in float32 or float64 too, so that it is the model or the
    data. By replays of a capsule as it was recorded, in float32, and with bfloat16 in place of float16, by the
    experiment of the whole step in float64, else by the dtypes at the birth."""
    for alarm in run.findings:
        dtypes = {s.get("dtype") for s in run.birth(alarm).get("inputs") or [] if isinstance(s, dict)} - {None}
        born = ", ".join(sorted(map(str, dtypes)))
        is_half = bool(dtypes & {"float16", "bfloat16"}) or run.cause(alarm) in HALF
        healed, how = _without_half(run, alarm)
        evidence = {
            "cause": run.cause(alarm),
            "dtypes": sorted(map(str, dtypes)),
            "replays": {k: r.says for k, r in run.replays.items()},
        }
        if is_half and healed is False:
            yield note(
                f"{run.step(alarm)}: born in {born or 'half precision'}, but {how}: the model or "
                "the data, not the precision",
                "another precision does not cure it",
                run.at(alarm),
                **evidence,
            )
        elif run.cause(alarm) in HALF:
            other, advice = _bfloat16(run)
            yield bad(
                f"{run.step(alarm)}: born in {born or 'half precision'}" + (f"; {how}" if healed else "") + other,
                advice or "bfloat16, or this block in float32: torch.autocast(..., enabled=False)",
                run.at(alarm),
                **evidence,
            )
        elif is_half and healed:
            other, advice = _bfloat16(run)
            yield warn(
                f"{run.step(alarm)}: born in {born}; {how}: the precision" + other,
                advice or "this block in float32: torch.autocast(..., enabled=False)",
                run.at(alarm),
                **evidence,
            )
        elif dtypes and dtypes <= {"float32", "float64"} and run.cause(alarm) != "unknown":
            effect = f"; {how}, which makes it a matter of range" if healed else f"; {how}" if healed is False else ""
            yield note(
                f"{run.step(alarm)}: born in {born} ({run.cause(alarm)}){effect}: the model or the "
                "data, not half precision",
                "",
                run.at(alarm),
                **evidence,
            )


def _bfloat16(run):
    """(what the step came to in bfloat16, what that advises); texts that are empty where it was not computed so."""
    replay = run.replays.get("bfloat16")
    if not replay or replay.is_finite is None:
        return "", ""
    if replay.is_finite:
        return "; with bfloat16 in place of float16 it is finite", "dtype=torch.bfloat16: it has the range"
    return (
        "; with bfloat16 in place of float16 it is not finite",
        "this block in float32: torch.autocast(..., enabled=False); bfloat16 does not cure it",
    )


def _without_half(run, alarm):
    """(is the step finite in more precision, how that is known); (None, "") where nothing shows it."""
    replay = run.replays.get("float32")
    if replay and replay.is_finite is not None:
        return replay.is_finite, "the whole step in float32 is " + (
            "finite" if replay.is_finite else "not finite either"
        )
    outcome = run.experiment(alarm, "whole step in float64")
    if outcome.startswith("not finite"):
        return False, "the whole step in float64 is not finite either"
    if outcome.partition(",")[0].endswith(" finite"):
        return True, "the whole step in float64 is finite"
    return None, ""
