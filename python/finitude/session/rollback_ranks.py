"""What ranks find out together about the copies of --rollback-every: is each part of a copy good?

A rank counts its part in the store through which the process group met. Later, as the copy is to take the place of an
older one, the first rank that asks decides for all, by compare-and-set. Nothing waits, and no collective operation is
made. A rank whose answer differs all the same (it was not in step) is noticed where all go back: the ranks then vote on
the number of the copy (Ballot.all_go_back)."""

from __future__ import annotations

import itertools
import re

from ..base import compat
from ..program import ranks

LOST = (RuntimeError, ValueError, OSError)  # the store, or whoever kept it
KEPT = 2  # what was decided of so many copies stays in the store
MOST_TEXT = 500  # characters of another rank's reason
_sessions = itertools.count()  # in this process; as many in each rank


class NotShared(Exception):
    """Why the ranks cannot find it out."""


class SharedCopies:
    def __init__(self) -> None:
        """Raises NotShared."""
        store = compat.group_store()
        if store is None:
            raise NotShared("several ranks have no process group over which they could go back together")
        self._common = store
        self._rank, self._size = ranks.world()
        self._prefix = f"finitude/copies/{next(_sessions)}"
        self._decided: list[int] = []

    def note_good(self, number: int) -> None:
        """This rank's part of that copy is good. Raises NotShared."""
        self._through_store(lambda: self._common.add(f"{self._prefix}/good/{number}", 1))

    def is_good(self, number: int) -> bool:
        """Have all ranks said that, as the first of them asked? Raises NotShared."""
        good, key = f"{self._prefix}/good/{number}", f"{self._prefix}/decided/{number}"
        found = self._through_store(lambda: self._common.add(good, 0))
        said = self._through_store(lambda: self._common.compare_set(key, "", "good" if found == self._size else "not"))
        self._decided.append(number)
        if self._rank == 0 and len(self._decided) > KEPT:
            old = self._decided.pop(0)
            self._through_store(
                lambda: [self._common.delete_key(f"{self._prefix}/{of}/{old}") for of in ("good", "decided")]
            )
        return bool(said == b"good")

    def end(self, why: str) -> None:
        """This rank keeps no copies: the others will not either."""
        try:
            self._common.compare_set(f"{self._prefix}/ended", "", f"rank {self._rank}: {why}")
        except LOST:
            pass  # they find that out themselves

    def ended(self) -> str:
        """Why another rank keeps no copies, or "". Raises NotShared."""
        key = f"{self._prefix}/ended"
        found = self._through_store(lambda: self._common.get(key) if self._common.check([key]) else b"")
        return re.sub(r"[^ -~]", "?", found.decode("ascii", "replace")[:MOST_TEXT])

    @staticmethod
    def _through_store(call):
        try:
            return call()
        except LOST as e:
            first = str(e).partition("\n")[0] or type(e).__name__
            raise NotShared(f"the ranks could not agree on a copy ({first})") from e
