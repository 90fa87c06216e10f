"""Commands that the server runs for a call: with a time limit, ended with all that they started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

from . import text
from .text import EXIT_CANNOT, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_OUTPUT = 64 << 20  # bytes of standard output that are read back
_TAIL = 4096  # of standard error


class Jobs:
    """Those that run. `end` may be called from another thread."""

    def __init__(self):
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._over = threading.RLock(), False  # a signal may come while it is held
        self._scratch: set[str] = set()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """A temporary directory, removed afterwards, also where a signal ends the server."""
        path = tempfile.mkdtemp(prefix="finitude-")
        self._scratch.add(path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            self._scratch.discard(path)

    def finitude(self, words: Sequence[str], seconds: float, cwd: str) -> tuple[int, str, str]:
        """`finitude *words`: (exit code, standard output, the end of standard error). Raises Refused where it takes
        longer."""
        return self.run([sys.executable, "-m", "finitude", *words], seconds, cwd)

    def run(self, command: Sequence[str], seconds: float, cwd: str) -> tuple[int, str, str]:
        with self.scratch() as place, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            environment = {**os.environ, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
            environment["TMPDIR"] = place  # one that is killed removes nothing itself
            with self._lock:
                if self._over:
                    raise Refused("the server is ending", EXIT_CANNOT)
                try:
                    process = subprocess.Popen(
                        command,
                        cwd=cwd,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    )
                except OSError as e:
                    raise Refused(f"cannot start {text.line(command[0], 200)}: {e.strerror}", EXIT_CANNOT) from None
                self._running.add(process)
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise Refused(f"it took longer than {seconds:g} s and was ended", EXIT_CANNOT) from None
            finally:
                _end(process)
                with self._lock:
                    self._running.discard(process)
            out.seek(0)
            size = err.seek(0, os.SEEK_END)
            err.seek(max(0, size - _TAIL))
            return code, out.read(MOST_OUTPUT).decode("utf-8", "replace"), err.read().decode("utf-8", "replace")

    def end(self) -> None:
        """All of them, now, and none begins after that."""
        with self._lock:
            self._over = True
            for process in list(self._running):
                _end(process)
            for path in list(self._scratch):
                shutil.rmtree(path, ignore_errors=True)


def _end(process):
    """The process with all that it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(Exception):
        process.wait(5)
