"""Reads events.jsonl, which may be anyone's and may be written meanwhile."""

from __future__ import annotations

import json
import math
import os

from ..base import plain_file
from ..report import named_samples
from ..report.run_folder import EVENTS as NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 64 << 20  # as src/record/event_file_posix.h writes at most
MOST = 5000  # events that are kept, the newest
MOST_LINE = 4 << 20
MOST_TEXT = 600
_TEXTS = ("time", "optimizer", "kind", "text", "what", "name", "verdict", "path", "outcome", "action")


def _step(value):
    return value if type(value) is int and -1 <= value < 2**53 else None


def _text(value):
    return "".join(c if c.isprintable() else " " for c in value[:MOST_TEXT]) if isinstance(value, str) else ""


def _event(line):
    """The keys that readers use, each of its type; None: it is no event."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not isinstance(given.get("kind"), str):
        return None
    event: dict[str, Any] = {key: _text(given[key]) for key in _TEXTS if key in given}
    event["step"], event["rank"] = _step(given.get("step")), _step(given.get("rank")) or 0
    if (since := _step(given.get("since"))) is not None:
        event["since"] = since
    horizon = given.get("horizon")
    if isinstance(horizon, list) and len(horizon) == 2 and all(_is_number(one) for one in horizon):
        event["horizon"] = horizon
    if isinstance(given.get("explained"), bool):
        event["explained"] = given["explained"]
    alarm = given.get("alarm")
    if isinstance(alarm, dict):
        event.update(_of_alarm(alarm))
    return event


def _is_number(value):
    return type(value) in (int, float) and math.isfinite(value)


def _of_alarm(alarm):
    found: dict[str, Any] = {}
    onset, cause, births = alarm.get("onset"), alarm.get("cause"), alarm.get("births")
    if isinstance(onset, dict) and (since := _step(onset.get("step"))) is not None:
        found["since"], found["name"] = since, _text(onset.get("name"))
    if isinstance(cause, dict):
        found["cause"] = _text(cause.get("class"))
    if isinstance(births, list) and births and isinstance(births[0], dict):
        line = births[0].get("line")
        found["op"], found["file"] = _text(births[0].get("op")), _text(births[0].get("file"))
        found["line"] = line if type(line) is int else 0
    if samples := named_samples.of(alarm):
        found["samples"] = samples
    return found


def read(folder: str, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """(events of whole lines from that byte on, where the next begin) of a run folder; none where there is no file."""
    found: list[dict[str, Any]] = []
    try:
        with plain_file.opened(os.path.join(folder, NAME)) as f:
            if os.fstat(f.fileno()).st_size < offset:
                offset = 0  # of another run by now
            f.seek(offset)
            while offset < MAX_BYTES:
                line = f.readline(MOST_LINE)
                if not line.endswith(b"\n"):
                    if len(line) < MOST_LINE:
                        break  # of a writer at work
                    offset += len(line)
                    continue
                offset += len(line)
                event = _event(line)
                if event:
                    found.append(event)
                    if len(found) > 2 * MOST:
                        del found[:MOST]
    except (OSError, ValueError):
        pass
    return found[-MOST:], offset
