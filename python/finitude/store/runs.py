"""Which runs lie in a folder, and which processes of a run left something to read."""

from __future__ import annotations

import os

from ..base import plain_json
from ..report import merge, run_folder
from . import reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_RUNS = 50
MOST_ENTRIES = 10_000  # of a directory
MOST_PROCESSES = 1024
MOST_REPORT = 64 << 20  # bytes
_MARKS = (run_folder.STARTED, "report.json", reader.NAME, run_folder.EVENTS)


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
    return [
        f for f in folders if any(os.path.isfile(os.path.join(f, name)) for name in (reader.NAME, run_folder.EVENTS))
    ]


class State:
    """Whether a run is finished, running or killed; its report is read again only where it has changed."""

    def __init__(self, run: str):
        self._run, self._stamp = run, (-1, -1)
        self._document: dict[str, Any] | None = None

    def now(self) -> str:
        """ "finished", "running" or "killed"."""
        path = os.path.join(self._run, "report.json")
        try:
            found = os.stat(path)
            stamp = found.st_mtime_ns, found.st_size
            if stamp != self._stamp:
                self._stamp, self._document = stamp, _head_of(path)
        except OSError:
            self._document = None
        return run_folder.state(self._run, self._document)


def _head_of(path):
    """What says whether it is the last report of a run; None where it cannot be read."""
    try:
        document = plain_json.read(path, MOST_REPORT)
    except ValueError:
        return None
    return {key: document[key] for key in ("under_way",) if key in document} if isinstance(document, dict) else None
