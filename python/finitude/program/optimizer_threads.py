"""Which thread made an optimizer. What several threads make at the same time is numbered by luck, and otherwise in
another process."""

from __future__ import annotations

import collections
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Makers:
    def __init__(self):
        self._made = {}  # ordinal -> [name of the thread, how many it had made before]
        self._counts = collections.Counter()

    def note(self, ordinal: int) -> bool:
        """Called in the thread that makes it. True the first time."""
        if ordinal in self._made:
            return False
        name = threading.current_thread().name
        self._made[ordinal] = [name, self._counts[name]]
        self._counts[name] += 1
        return True

    def identity(self, ordinal: int) -> list[Any] | None:
        """For another process to know it by; None where the ordinal says it: all that were made come from the main
        thread."""
        main = threading.main_thread().name
        return self._made.get(ordinal) if any(name != main for name, _ in self._made.values()) else None

    def is_same(self, ordinal: int, identity: Any) -> bool:
        return self._made.get(ordinal) == identity
