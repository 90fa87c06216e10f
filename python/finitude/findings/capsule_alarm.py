"""The alarm that a capsule tells of, made that of the run. Without torch: a launcher does it for its ranks."""

import contextlib
import json
import os

from ..base.plain_json import read, safe


def complete(alarm, redact):
    """What became of the step is known only when its capsule is there: its report is made that of the run. Where that cannot be, or the
    capsule has gone meanwhile, nothing is lost but that."""
    about = os.path.join(alarm["capsule"], "capsule.json")
    temporary = f"{about}.{os.getpid()}.new"
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = read(about)
        if not isinstance(document, dict):
            raise ValueError
        told = {**alarm, "capsule": None}  # wherever it lies
        document["alarm"] = safe(without_sources(told) if redact else told)
        try:
            with open(temporary, "w", encoding="utf-8") as f:
                json.dump(document, f, indent=1, allow_nan=False)
            os.replace(temporary, about)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


NOT_TOLD = ("source", "file", "line", "saved", "diff", "samples", "history")
RANGE = ("min", "max", "absmax")


def without_sources(value):
    """What of an alarm a redacted capsule tells: no line, and no value."""
    if isinstance(value, dict):
        one = value.get("numel") == 1   # its range is its value
        kept = {k: without_sources(v) for k, v in value.items() if k not in NOT_TOLD and not (one and k in RANGE)}
        if isinstance(kept.get("loss"), float):
            kept["loss"] = None
        if isinstance(kept.get("outcome"), str):
            kept["outcome"] = kept["outcome"].partition(":")[0]  # what follows may show a value and its line
        return kept
    return [without_sources(v) for v in value] if isinstance(value, list) else value


def forget_removed(alarms):
    """Of alarms whose capsules newer ones have pushed out: they name none any more. What is said of it, or ""."""
    gone = []
    for alarm in alarms:
        folder = alarm.get("capsule") if isinstance(alarm, dict) else None
        # Where the directory around it is not there either, it has been moved, or lies on another machine.
        if isinstance(folder, str) and folder and not alarm.get("capsule_pending") and not os.path.lexists(folder) and \
                os.path.isdir(os.path.dirname(folder)):
            alarm["capsule"] = None
            gone.append(str(alarm.get("step")))
    if not gone:
        return ""
    several = len(gone) > 1
    steps = ", ".join(gone[:8]) + (f" and {len(gone) - 8} more" if len(gone) > 8 else "")
    return f"the capsule{'s' * several} of step{'s' * several} {steps}: removed by --capsules, which keeps the newest"
