"""The alarm that a capsule records, made that of the run. Without torch: a launcher does it for its ranks."""

from __future__ import annotations

import contextlib
import os
import re

from ..base import checked_json, secrets
from ..base.plain_json import read, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from typing import Any

    from ..base.types import Alarm


def complete(alarm: Alarm, redact: int) -> None:
    """What became of the step is known only when its capsule is there: its report is made that of the run. Where that
    cannot be, or the capsule has gone meanwhile, nothing is lost but that."""
    about = os.path.join(alarm["capsule"] or "", "capsule.json")
    temporary = f"{about}.{os.getpid()}.new"
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = read(about, is_damaged=checked_json.is_damaged)
        if not isinstance(document, dict):
            raise ValueError
        final = {**alarm, "capsule": None}  # wherever it lies
        document["alarm"] = safe(secrets.hidden(without_sources(final) if redact else final))
        try:
            with open(temporary, "wb") as f:
                f.write(checked_json.text_of(document))
            os.replace(temporary, about)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


REDACTED = (
    "source",
    "expression",
    "file",
    "line",
    "saved",
    "diff",
    "samples",
    "history",
    "scalars",
    "onset",
    "onsets",
    "exponents",
    "around",
)
RANGE = ("min", "max", "absmax", "mean", "sum_sq")
FEWEST = 8  # as in src/record/reported_range.h


def _gives_values_away(stats):
    """Whether a range is of so few values that it is these, or may be of one magnitude: without a sum of squares nobody
    can say."""
    if type(stats.get("numel")) is not int:
        return False
    values = stats["numel"] - sum(stats.get(key) or 0 for key in ("nan", "inf", "zero"))
    low, high = stats.get("min") or 0, stats.get("max") or 0
    return values < FEWEST or low == high or low == -high or 0 in (low, high)


PLACES = ("file", "line")
# A number with a fraction or an exponent. Counts stay, and so do names (layers.0.1.weight) and versions (2.13.0).
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?!\w|\.\w)")
# What a sentence quotes of a line (src/show/analysis.cpp).
_QUOTED = re.compile(r"; (?:of that line it is|the divisor is) [^;]*")
_SENTENCES = ("text", "tried", "name", "reason", "rerun_text")
_LEFT_OUT = "(redacted)"


def redacted(report: dict[str, Any]) -> dict[str, Any]:
    """What of a report one with --redact holds: no value, no text of a line, no argument of the program. Its places
    stay: the report lies beside the program that they are of."""
    shown = without_sources(report, PLACES)
    return {**shown, "command": []} if "command" in shown else shown


def without_sources(value: Any, but: Container[str] = ()) -> Any:
    """What of an alarm a redacted capsule holds: no line, and no value. but: keys that are kept all the same."""
    if isinstance(value, dict):
        few = _gives_values_away(value)
        kept = {
            k: without_sources(v, but)
            for k, v in value.items()
            if (k not in REDACTED or k in but) and not (few and k in RANGE)
        }
        if isinstance(kept.get("loss"), float):
            kept["loss"] = None
        if isinstance(kept.get("evidence"), dict):  # of a warning: losses and gradients
            kept["evidence"] = {}
        if isinstance(kept.get("outcome"), str):
            kept["outcome"] = kept["outcome"].partition(":")[0]  # what follows may show a value and its line
        for key in _SENTENCES:
            if isinstance(kept.get(key), str):
                kept[key] = _NUMBER.sub(_LEFT_OUT, _QUOTED.sub("", kept[key]))
        return kept
    return [without_sources(v, but) for v in value] if isinstance(value, (list, tuple)) else value


REMOVED = "removed by --capsules, which keeps the newest"


def forget_removed(alarms: Iterable[Any]) -> str:
    """Alarms whose capsules newer ones have pushed out name none any more, and say why. What is said of all, or ""."""
    gone = []
    for alarm in alarms:
        folder = alarm.get("capsule") if isinstance(alarm, dict) else None
        # Where the directory around it is not there either, it has been moved, or lies on another machine.
        if (
            isinstance(folder, str)
            and folder
            and not alarm.get("capsule_pending")
            and not os.path.lexists(folder)
            and os.path.isdir(os.path.dirname(folder))
        ):
            alarm["capsule"] = None
            key = "text" if "kind" in alarm else "rerun_text"  # an advisory has no second run
            alarm[key] = f"{alarm.get(key) or ''}; its capsule was {REMOVED}".removeprefix("; ")
            gone.append(str(alarm.get("step")))
    if not gone:
        return ""
    several = len(gone) > 1
    steps = ", ".join(gone[:8]) + (f" and {len(gone) - 8} more" if len(gone) > 8 else "")
    return f"the capsule{'s' * several} of step{'s' * several} {steps} {'were' if several else 'was'} {REMOVED}"
