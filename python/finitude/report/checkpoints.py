"""The checkpoints that a run has written: how many, how many of them bad, and which good one is the newest."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GOOD, BAD, AFTER_ONSET = "good", "bad", "after-onset"
MOST_KEPT = 1000  # good ones that are known by path; programs keep the newest few


class Checkpoints:
    def __init__(self):
        self._good: list[tuple[str, int | None]] = []  # the newest last
        self._kept: dict[str, str] = {}  # of the last good one: its path, where it is also
        self._counts = {GOOD: 0, BAD: 0, AFTER_ONSET: 0}

    def add(
        self,
        path: str,
        step: int | None,
        verdict: str,
        is_written: bool,
        has_weights: bool,
        kept: str | None = None,
    ) -> None:
        """kept: where it is also, also when the program has removed it. is_written: else it was refused, and what lies
        at the path is as it was. has_weights: else it is no checkpoint to return to, but a part of one."""
        self._counts[verdict] += 1
        if is_written:
            self._good = [one for one in self._good if one[0] != path][-MOST_KEPT:]
        if verdict == GOOD and has_weights:
            self._good.append((path, step))
            self._kept = {path: kept} if kept else {}

    def last_good(self, onset: int | None = None) -> dict[str, Any] | None:
        """The newest that is still there: programs remove old ones. onset: the step since which something grows; what
        was written after it is good no more, though nobody knew of the growth then."""
        while self._good:
            path, step = self._good[-1]
            if onset is not None and step is not None and step > onset:
                self._good.pop()
                continue
            for place in (path, self._kept.get(path)):
                if place and os.path.exists(place):
                    return {"checkpoint": place, "step": step}
            self._good.pop()
        return None

    def document(self, onset: int | None) -> dict[str, Any]:
        """As the report has them. onset: as last_good() takes it."""
        return {
            "written": sum(self._counts.values()),
            "bad": self._counts[BAD],
            "after_onset": self._counts[AFTER_ONSET],
            "last_good": self.last_good(onset),
        }
