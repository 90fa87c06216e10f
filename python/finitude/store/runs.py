"""Which runs lie in a folder, and which processes of a run left something to read."""

from __future__ import annotations

import os

from ..base import plain_json
from ..report import events, merge, run_folder
from . import reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_RUNS = 50
MOST_ENTRIES = 10_000  # of a directory
MOST_PROCESSES = 1024
_MARKS = (run_folder.STARTED, "report.json", reader.NAME, events.NAME)


def is_run(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in _MARKS) or any(
        os.path.isfile(os.path.join(member, reader.NAME)) for member in merge.member_folders(path)[:1]
    )


def found(path: str) -> list[str]:
    """The run at that path, or the runs in that folder, the newest first."""
    if os.path.isfile(path):  # a store.sqlite or report.json
        path = os.path.dirname(path) or os.curdir
    if is_run(path):
        return [path]
    try:
        with os.scandir(path) as entries:
            names = [e.name for _, e in zip(range(MOST_ENTRIES), entries) if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    newest = sorted((os.path.join(path, name) for name in names), key=os.path.basename, reverse=True)
    runs = []
    for run in newest:
        if len(runs) < MOST_RUNS and is_run(run):
            runs.append(run)
    return runs


def processes(run: str) -> list[str]:
    """The folders of a run with a store or events, that of the run itself first."""
    folders = [run, *merge.member_folders(run)[:MOST_PROCESSES]]
    return [f for f in folders if any(os.path.isfile(os.path.join(f, name)) for name in (reader.NAME, events.NAME))]


def state(run: str) -> str:
    """ "finished", "running" or "killed"."""
    document: Any = None
    try:
        document = plain_json.read(os.path.join(run, "report.json"), 64 << 20)
    except (OSError, ValueError):
        pass
    return run_folder.state(run, document if isinstance(document, dict) else None)
