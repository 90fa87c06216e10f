"""The samples of the data set that an alarm of a report names. Loads no torch."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 1000


def _objects(value):
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def of(alarm: dict[str, Any]) -> list[int]:
    """In order, at most MOST. alarm: as anyone may have written it."""
    cause = alarm.get("cause")
    experiments = cause.get("experiments") if isinstance(cause, dict) else None
    found: dict[int, None] = {}
    for one in (*_objects(alarm.get("births")), *_objects(experiments)):
        samples = one.get("samples")
        for sample in samples if isinstance(samples, list) else ():
            if type(sample) is int and len(found) < MOST:
                found[sample] = None
    return sorted(found)
