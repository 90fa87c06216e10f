"""Ranks that come together at a key of the store through which their process group met.

Each rank makes a number of store operations that does not depend on the number of ranks. Only a text that names ranks
reads from all of them, and one rank makes it for all."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

POLL_S = 0.005
_POLL_OF_EACH_S = 5e-5  # so that the one thread that serves the store is asked 20,000 times a second by all ranks
_AUTHOR_S = 5.0  # how long the rank that makes a text is waited for


class Gathering:
    """Called by one thread at a time. Every method raises what the store raises: RuntimeError, ValueError, OSError."""

    def __init__(self, store: Any, key: str, rank: int, of: Sequence[int]):
        self._shared, self._key, self._rank, self._of = store, key, rank, of
        self.is_here = False  # this rank has arrived

    def arrive(self, text: str = "") -> None:
        """This rank is here, with a text for the others. Only the first call counts."""
        if self.is_here:
            return
        self.is_here = True
        self._shared.set(f"{self._key}/{self._rank}", text)
        self._shared.add(f"{self._key}/count", 1)

    def count(self) -> int:
        return self._shared.add(f"{self._key}/count", 0)

    def is_complete(self) -> bool:
        return self.count() >= len(self._of)

    def missing(self) -> list[int]:
        """One operation for each rank."""
        return [rank for rank in self._of if not self._shared.check([f"{self._key}/{rank}"])]

    def text_of(self, rank: int) -> str | None:
        """None: it has not come."""
        key = f"{self._key}/{rank}"
        return self._shared.get(key).decode() if self._shared.check([key]) else None


def poll_s(ranks: int) -> float:
    """Time between two looks into the store, of each of so many ranks."""
    return max(POLL_S, ranks * _POLL_OF_EACH_S)


def said(store: Any, key: str) -> str:
    """What was said first there, or ""."""
    return store.get(key).decode() if store.check([key]) else ""


def say_first(store: Any, key: str, text: str) -> str:
    """What is said first there, by whichever rank: `text`, if it is this one."""
    return store.compare_set(key, "", text).decode()


def said_by_one(store: Any, key: str, ranks: int, text: Callable[[], str]) -> str:
    """What was said first there. text: reads from all ranks, so that the first of those that ask calls it, and the
    others only if that one does not come back with it."""
    if store.add(f"{key}-author", 1) != 1:
        limit = time.monotonic() + _AUTHOR_S
        while time.monotonic() < limit:
            if first := said(store, key):
                return first
            time.sleep(poll_s(ranks))
    return said(store, key) or say_first(store, key, text())
