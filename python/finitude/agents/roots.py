"""The directories that a server may read, and the runs and capsules in them."""

from __future__ import annotations

import os

from ..base import plain_json
from ..capsules import pack
from ..report import merge, run_folder
from . import text
from .text import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

RUNS = "finitude-runs"
MOST_RUNS = 50  # that are listed, the newest
MOST_ENTRIES = 10_000  # of a directory
MOST_CAPSULES = 20  # of a run that are named


class Roots:
    """Paths are taken relative to the first root, links are followed, and what they lead to has to lie in a root."""

    def __init__(self, directories: Sequence[str]):
        self.directories = [os.path.realpath(d) for d in directories]

    def path(self, given: Any) -> str:
        """The real path. Raises Refused."""
        if not isinstance(given, str) or not given or "\0" in given or len(given) > 4096:
            raise Refused("a path is a text of 1 to 4096 characters")
        path = os.path.realpath(
            os.path.join(self.directories[0], os.path.expanduser(given) if given[0] == "~" else given)
        )
        if not any(is_below(path, root) for root in self.directories):
            raise Refused(
                f"{text.line(given, 200)} is outside the directories of this server (finitude mcp --root DIR)"
            )
        if not os.path.exists(path):
            raise Refused(f"{text.line(given, 200)} does not exist")
        return path

    def capsule(self, given: Any) -> str:
        """The real path of a capsule: its folder, or one file. Of a run its newest. Raises Refused."""
        path = self.path(given)
        if os.path.isfile(os.path.join(path, pack.ABOUT)) or pack.is_packed(path):
            return path
        if os.path.isdir(path) and (found := capsules(path)):
            return self.path(found[-1])
        raise Refused(f"{text.line(given, 200)} is no capsule, and no run that holds one; list_runs names both")

    def newest(self) -> str:
        """The newest run in the roots, or in finitude-runs below them. Raises Refused."""
        every = [run for d in self.directories for run in runs_of(d)]
        if not every:
            raise Refused(f"there is no run in {', '.join(self.directories)} or in {RUNS} below")
        return max(every, key=os.path.basename)


def is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def is_run(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in (run_folder.STARTED, "report.json", "steps.ring"))


def _folders(path):
    try:
        with os.scandir(path) as entries:
            return sorted(e.path for _, e in zip(range(MOST_ENTRIES), entries) if e.is_dir(follow_symlinks=False))
    except OSError:
        return []


def runs_of(directory: str) -> list[str]:
    """Runs, oldest first, of a directory: itself, those in it, or those in finitude-runs in it."""
    if is_run(directory):
        return [directory]
    found = [d for d in _folders(directory) if is_run(d)]
    return found or [d for d in _folders(os.path.join(directory, RUNS)) if is_run(d)]


def capsules(run: str) -> list[str]:
    """Folders of capsules of a run and of its processes, by step."""
    places = [run, *(d for d in _folders(run) if os.path.basename(d).startswith(("rank-", "pid-")))]
    found = [
        d
        for place in places
        for d in _folders(place)
        if os.path.basename(d).startswith("step-")
        and ".partial-" not in d
        and os.path.isfile(os.path.join(d, pack.ABOUT))
    ]
    return sorted(found, key=os.path.basename)


def summary(run: str, shown: str) -> dict[str, Any]:
    """What a list says of a run."""
    facts: dict[str, Any] = {"run": text.line(shown, 300)}
    document = None
    try:
        document = plain_json.read(os.path.join(run, "report.json"), 64 << 20)
    except (OSError, ValueError):
        pass
    if not isinstance(document, dict):
        facts["outcome"] = run_folder.state(run, None)
    else:
        state = run_folder.state(run, document)
        facts["outcome"] = text.line(document.get("outcome"), 20) if state == "finished" else state
        if document.get("reason"):
            facts["reason"] = text.line(document["reason"], 160)
        facts["alarms"] = merge.count_alarms(document)
    found = capsules(run)
    facts["capsules"] = [os.path.relpath(c, run) for c in found[-MOST_CAPSULES:]]
    if len(found) > MOST_CAPSULES:
        facts["more capsules"] = len(found) - MOST_CAPSULES
    return facts
