"""What a run left in its folder, and whether it has ended by itself, still runs or was killed. Torch-free; the folder
may be anyone's."""

from __future__ import annotations

import os

from ..base import alive, plain_json
from . import merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..base.types import FromFile

STARTED = "run.json"
EVENTS = "events.jsonl"  # what happened, one JSON object a line


def who_runs(directory: str, document: Mapping[str, Any] | None = None) -> FromFile:
    """The process that wrote the folder, for alive.is_alive; {}: not known."""
    if document and isinstance(document.get("under_way"), dict):
        return document["under_way"]
    try:
        started = plain_json.read(os.path.join(directory, STARTED))
        if isinstance(started, dict) and isinstance(started.get("process"), dict):
            return started["process"]
    except (OSError, ValueError):
        pass
    return {}


def state(directory: str, document: Mapping[str, Any] | None = None) -> str:
    """ "finished", "running" or "killed". document: its report.json, None where it has none."""
    if document is not None and "under_way" not in document:
        return "finished"
    if alive.is_alive(who_runs(directory, document)):
        return "running"
    members = [] if document is not None else merge.member_folders(directory)
    return "running" if any(alive.is_alive(who_runs(path)) for path in members) else "killed"
