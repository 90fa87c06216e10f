"""A process that Finitude starts in a program that it watches. A handler of SIGCHLD that the program has set is not
called for it: src/base/own_children_posix.h."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class OwnChild:
    """Made before the process is started; `ended` once it has been waited for, or could not be started. Where the
    engine is not loaded there is no program."""

    def __init__(self) -> None:
        engine = sys.modules.get("finitude._native")
        self._child: Any = None if engine is None else engine.OwnChild()

    def started(self, process: int) -> None:
        if self._child is not None:
            self._child.started(process)

    def ended(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.ended()

    def __enter__(self) -> OwnChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended()
