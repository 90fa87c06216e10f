"""A process that Finitude starts in a program that it watches. A handler of SIGCHLD that the program has set is not
called for it: src/base/own_children_posix.h."""

from __future__ import annotations

import os
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_S = 0.005


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


class OwnProcess(subprocess.Popen[bytes]):
    """A Popen that knows when its exit code is not known: os.wait() in the program takes any child, and of one that
    was taken Popen says 0."""

    is_taken = False

    def poll(self) -> int | None:
        self._look()
        return super().poll()

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None and not self._look():
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(POLL_S)
        return super().wait()

    def _look(self) -> bool:
        """Has it ended? The code is read before the process is waited for, so that it is kept whoever does that."""
        if self.returncode is not None or self.is_taken:
            return True
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self.is_taken = True
            return True
        if found is None:
            return False
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        super().wait()
        self.returncode = code
        return True
