"""What a second run in place would insert into databases that are open, update and commit is skipped, as the first run
has done it.

SQLite writes below Python, where nothing can stop it, but it asks before it compiles a statement: what it is
to ignore becomes a statement that does nothing. What was read is read as it is. A deletion cannot be ignored in
that way and is made again. In the copy of the process (`fork_dry_run.py`) memory of a write-ahead log is shared with
the process itself, and a journal has a name: the copy ends before it would write either."""

from __future__ import annotations

import sys

from .. import _native
from . import fork_dry_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Numbers of sqlite3.h; the module has names for few of them.
READS = frozenset((19, 20, 21, 31, 33))  # PRAGMA, READ, SELECT, FUNCTION, RECURSIVE
DELETE, UPDATE = 9, 23
OK, IGNORE = 0, 2


class Databases:
    """From now on until `end`. is_mine() -> bool: is it the thread that trains?"""

    def __init__(self, is_mine: Callable[[], bool]):
        self._is_mine, self._held = is_mine, []
        if (kind := getattr(sys.modules.get("sqlite3"), "Connection", None)) is not None:
            self._held = [it for it in _native.instances((kind,)) if _ask(it, self._answer)]

    def _answer(self, action, *_):
        if action in READS or not self._is_mine():
            return OK
        if action in (DELETE, UPDATE) and fork_dry_run.is_under_way():  # an update writes the rows again, as they are
            fork_dry_run.end(fork_dry_run.UNKNOWN)
        return OK if action == DELETE else IGNORE

    def end(self) -> None:
        while self._held:
            connection = self._held.pop()
            # Being asked again also makes it compile again what was compiled to nothing and is kept for the next time.
            if _ask(connection, lambda *_: OK) and sys.version_info >= (3, 11):
                _ask(connection, None)


def _ask(connection, answer):
    try:
        connection.set_authorizer(answer)
    except Exception:  # it is closed, or of another thread
        return False
    return True
