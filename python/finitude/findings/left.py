"""What a run left in its folder, and whether it has ended by itself, still runs or was killed. Torch-free; the folder
may be anyone's."""

from __future__ import annotations

import os

from ..base import alive, plain_json
from . import merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Document

STARTED = "run.json"
MAX_CAPSULES = 1000


def who_runs(directory: str, document: Document | None = None) -> dict[str, Any]:
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


def state(directory: str, document: Document | None = None) -> str:
    """ "finished", "running" or "killed". document: its report.json, None where it has none."""
    if document is not None and "under_way" not in document:
        return "finished"
    if alive.is_alive(who_runs(directory, document)):
        return "running"
    members = [] if document is not None else merge.member_folders(directory)
    return "running" if any(alive.is_alive(who_runs(path)) for path in members) else "killed"


def told(directory: str, document: Document) -> Document:
    """The report as a reader gives it: of a run that has not ended by itself, how it stands."""
    now = state(directory, document)
    if now == "killed" and merge.is_report(document):  # what it was writing is there or will not be
        document = merge.settled(document)
    return document if now == "finished" else {**document, "outcome": now}


def capsules(directory: str) -> list[str]:
    """Folders of capsules of the run and of its processes, by name. One that a run was killed over may lack its
    name."""
    found = []
    for folder in (directory, *merge.member_folders(directory)):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [
            os.path.join(folder, name)
            for name in names
            if name.startswith("step-") and os.path.isfile(os.path.join(folder, name, "capsule.json"))
        ]
    return found[:MAX_CAPSULES]


def is_run(directory: str) -> bool:
    """Is it the folder of a run, with a report or without?"""
    if any(os.path.isfile(os.path.join(directory, name)) for name in ("report.json", "steps.ring", STARTED)):
        return True
    return bool(merge.member_folders(directory) or capsules(directory))


def steps(directory: str) -> int:
    """As many as its ring and those of its processes tell of: ranks take theirs together."""
    folders = directory, *merge.member_folders(directory)
    return max(merge.steps_in_ring(os.path.join(folder, "steps.ring"))[0] for folder in folders)
