"""One report of all processes of a run: each that trained left its own below the folder of the run. Torch-free.

How the reports become one, and the line that ends a run: src/incident/merge.h and report.h."""

from __future__ import annotations

import os
import re

from ..base import pages
from ..base.ask import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..base.types import Alarm, Document, Watched

MAX_ALARMS = 1000  # src/show/show.h: what a reader accepts
# an advisory: what lay around as an exception ended the program, of which no cause is known
SEEN = "not-finite-at-the-end"
_NUMBER = re.compile(r"[0-9]{1,9}(-|$)")  # of a rank or process, and what distinguishes two of them
COUNTS = ("optimizers", "steps", "backward_calls", "gradients_scanned", "scaler_skips", "handled_by_script")
KILLED = "killed.json"  # in the folder of a process: the signal that ended it, by who saw it
MOST_ELSEWHERE = 64  # alarms of other machines in one report


def add_elsewhere(found: list[tuple[Alarm, Any]], own: Alarm, others: Sequence[Any]) -> None:
    """What ranks of other machines have sent of the step of the alarm `own`, into found (rerun/rank_births.py)."""
    found += [(own, one) for one in others[: max(0, MOST_ELSEWHERE - len(found))]]


def elsewhere(found: Sequence[tuple[Alarm, Any]], alarms: Sequence[Alarm]) -> list[Any]:
    """Of those, what is of the steps of these alarms, which are this rank's: as many as there is room for."""
    known = {id(one) for one in alarms}
    decided = [{**other, "action": own.get("action", "stopped")} for own, other in found if id(own) in known]
    return decided[: MAX_ALARMS - len(alarms)]


def nothing_watched() -> Watched:
    return {
        "optimizers": 0,
        "steps": 0,
        "backward_calls": 0,
        "gradients_scanned": 0,
        "scaler_skips": 0,
        "handled_by_script": 0,
    }


class Member:
    """What one process left in its folder. document: its report, None where it left none that can be used; missing:
    why not; is_whole: it wrote that report at its end."""

    def __init__(self, directory: str, document: Document | None = None, missing: str = "", is_whole: bool = False):
        self.directory, self.document, self.missing, self.is_whole = directory, document, missing, is_whole
        self.name = os.path.basename(directory)

    @property
    def rank(self) -> int | None:
        """Its rank, or None for a process that is none of several."""
        word, _, number = self.name.partition("-")
        return int(number.partition("-")[0]) if word == "rank" else None


def count_alarms(document: dict[str, Any]) -> int:
    """How many a run had by its report, which may be anyone's: those that it lists, and those past what it holds."""
    listed, more = document.get("alarms"), document.get("alarms_unlisted")
    return (len(listed) if isinstance(listed, list) else 0) + (more if type(more) is int and more > 0 else 0)


def note_killed(folder: str, signal: str) -> None:
    """signal: its name."""
    try:
        pages.write_whole(os.path.join(folder, KILLED), pages.as_json({"signal": signal}).encode())
    except OSError:
        pass


def member_folders(directory: str) -> list[str]:
    """Of the processes of the run that trained."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    parts = [(name, *name.partition("-")[::2]) for name in names]
    return [
        os.path.join(directory, name)
        for name, word, number in parts
        if word in ("rank", "pid") and _NUMBER.match(number)
    ]


def members(directory: str) -> list[Member]:
    """The processes of the run that trained, ranks first and in order."""
    if not member_folders(directory):
        return []
    return [
        Member(os.path.join(directory, one["name"]), one["report"], one["missing"], one["is_whole"])
        for one in ask("members", run=directory)
    ]


def merged(own: Document, found: Sequence[Member]) -> Document:
    """`own`, the report of the process that was started, with what the others left."""
    if not found:
        return own
    given = [
        {"name": one.name, "report": one.document, "missing": one.missing, "is_whole": one.is_whole} for one in found
    ]
    return ask("merged", own=own, members=given)


def closing_line(document: Document, place: str = "", page: str = "") -> str:
    """The line that every run ends with. place, page: of the report as JSON and as a page, or ""; a page in the same
    folder is called by its name alone."""
    line = ask("closing_line", report=document)
    if not place:
        return line + "."
    if page and os.path.dirname(page) == os.path.dirname(place):
        page = os.path.basename(page)
    return f"{line}. Report: {place}" + (f", page: {page}" if page else "")
