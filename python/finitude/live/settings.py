"""What a run was started with, as one flat table: for the comparison of runs with and without alarms."""

from __future__ import annotations

import os

from ..base import plain_json
from ..base.say import printable
from ..report.run_folder import STARTED

MOST_BYTES = 4 << 20
MOST_ROWS = 600  # of a run
MOST_TEXT = 80  # characters of a value
_KEYS = ("python", "torch", "finitude", "on_alarm", "level", "script")


def of_run(folder: str) -> dict[str, str]:
    """{"AdamW lr": "0.001", "package numpy": "2.1.0", "torch": ...}; empty where there is no run.json to be read."""
    try:
        started = plain_json.read(os.path.join(folder, STARTED), MOST_BYTES)
    except (OSError, ValueError):
        return {}
    if not isinstance(started, dict):
        return {}
    found: dict[str, str] = {}
    for optimizer in _list(started.get("optimizers")):
        for at, group in enumerate(_list(optimizer.get("groups")) if isinstance(optimizer, dict) else ()):
            where = f"{optimizer.get('class', '')} group {at}" if at else str(optimizer.get("class", ""))
            _put(found, where, group)
    _put(found, "", {key: started.get(key) for key in _KEYS})
    git = started.get("git")
    if isinstance(git, dict):
        _put(found, "git", {"commit": git.get("commit")})
    _put(found, "variable", started.get("environment"))
    _put(found, "package", started.get("packages"))
    return found


def _list(value):
    return value[:20] if isinstance(value, list) else []


def _put(found, where, values):
    for key, value in values.items() if isinstance(values, dict) else ():
        if len(found) < MOST_ROWS and isinstance(key, str) and isinstance(value, (str, int, float, bool)):
            text = str(value)
            found[printable(f"{where} {key}".strip()[:MOST_TEXT])] = printable(text[:MOST_TEXT])
