"""What a second run in place does outside of its process cannot be held: a command that it starts, what it sends over
the network, a database that it opens. It is done twice, and named.

Python raises audit events for it (PEP 578). A hook for them stays as long as the process, so it is set when the first
second run begins, and does nothing while none is under way."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile

from ..base import HOME, secrets
from ..base._places import is_library
from ..base.kinds import is_a
from ..base.patches import Patches
from . import fork_dry_run, paths
from .known_libraries import SENDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

MOST = 8
LONGEST = 60  # characters of a command that are shown

_listening = []  # the Outside that gets what happens; the last one
_hooked = False


def _hook(event, args):
    if _listening and event in DESCRIPTIONS:
        _listening[-1].note_event(event, args)


def _command(args):
    """A command line as the user wrote it, shortened."""
    if is_a(args, bytes):
        args = os.fsdecode(args)
    if is_a(args, str):
        args = secrets.masked_command(args)
    else:
        args = shlex.join(
            secrets.masked_words([os.fsdecode(a) if is_a(a, (bytes, os.PathLike)) else str(a) for a in args])
        )
    return args if len(args) <= LONGEST else args[: LONGEST - 3] + "..."


def _peer(address):
    if is_a(address, tuple) and len(address) >= 2:
        return f"{address[0]}:{address[1]}"
    return os.fsdecode(address) if is_a(address, (str, bytes)) and address else None


def _sent(address):
    return (peer := _peer(address)) and f"sent to {peer}"


def _connected(address):
    return (peer := _peer(address)) and f"connected to {peer}"


# audit event: what is reported of it, made of its arguments
DESCRIPTIONS = {
    "os.system": lambda command: f"ran {_command(command)}",
    "subprocess.Popen": lambda _, args, *__: f"ran {_command(args)}",
    "os.posix_spawn": lambda path, args, _: f"ran {_command(args)}",
    "os.spawn": lambda _, path, args, __: f"ran {_command(args)}",
    "os.fork": lambda: "forked a process",
    "os.forkpty": lambda: "forked a process",
    "os.kill": lambda pid, number: f"sent signal {number}" if number else None,
    "os.killpg": lambda pid, number: f"sent signal {number}" if number else None,
    "socket.connect": lambda _, address: _connected(address),
    "socket.sendto": lambda _, address: _sent(address),
    "socket.sendmsg": lambda _, address: _sent(address),
    "open": None,  # (path, mode, flags): a file, see `opened`
    "sqlite3.connect": None,
}


class Outside:
    """From `begin` until `end`. is_mine() -> bool: is it the thread that trains? opened(path): a file is opened to be
    written."""

    def __init__(self, is_mine: Callable[[], bool], opened: Callable[[Any], Any]):
        self.done = []  # what was done, in order, each once
        self._is_mine, self._opened, self._patches, self._busy = is_mine, opened, Patches(), False

    def begin(self) -> None:
        global _hooked
        if not _hooked:
            sys.addaudithook(_hook)
            _hooked = True
        for module, name in SENDS:
            if (kind := getattr(sys.modules.get(module), name, None)) is not None:
                for method in ("send", "sendall"):
                    self._watch(kind, method)
        _listening.append(self)

    def _watch(self, kind: type, name: str) -> None:
        original = getattr(kind, name)

        def stand_in(this, *args, **kwargs):
            if self._is_mine():
                if fork_dry_run.is_under_way():
                    fork_dry_run.end(fork_dry_run.UNKNOWN)  # done twice is less than in a restart, from the start again
                try:
                    if not _is_librarys():
                        self._note(_sent(this.getpeername()))
                except OSError:
                    pass  # it will say so itself
            return original(this, *args, **kwargs)

        self._patches.set(kind, name, stand_in)

    def end(self) -> None:
        if self in _listening:
            _listening.remove(self)
            if _is_profiled():
                self.done.append("counted by the profiler")
        self._patches.undo()

    def note_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Never raises: that would forbid what the program does."""
        if self._busy or not self._is_mine():
            return
        self._busy = True
        try:
            if _is_librarys():
                return
            if fork_dry_run.is_under_way() and (event != "open" or _changes(*args)):
                fork_dry_run.end(fork_dry_run.UNKNOWN)
            if event == "open":
                path, _, flags = args
                if is_a(path, (str, bytes, os.PathLike)) and flags & os.O_ACCMODE != os.O_RDONLY:
                    self._opened(path)
            elif event == "sqlite3.connect":
                if is_a(args[0], (str, bytes, os.PathLike)) and args[0] not in ("", ":memory:"):
                    self._opened(args[0])
            else:
                self._note(DESCRIPTIONS[event](*args))  # type: ignore[misc]  # the two that are None were handled above
        except Exception:  # then it is not named
            pass
        finally:
            self._busy = False

    def _note(self, what: str | None) -> None:
        if what and what not in self.done and len(self.done) < MOST:
            self.done.append(what)


def _is_profiled():
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    if sys.modules["torch"].autograd._profiler_enabled():
        return True
    return (
        sys.getprofile() is not None
        or monitoring is not None
        and monitoring.get_tool(monitoring.PROFILER_ID) is not None
    )


def _changes(path, _, flags):
    """Is a file of before opened to be written, that nothing replaces?"""
    folder = os.path.join(tempfile.gettempdir(), "finitude-")
    return (
        is_a(path, (str, bytes, os.PathLike))
        and flags & os.O_ACCMODE != os.O_RDONLY
        and os.path.isfile(path)
        and not os.path.realpath(os.fsdecode(path)).startswith(os.path.realpath(folder))
    )


# Whose frames lie between the program and an audit event. files.py imports this module, so it is not imported here.
_MINE = (__file__, paths.__file__, os.path.join(os.path.dirname(__file__), "files.py"))


def _is_librarys():
    """Is it torch's own doing (workers of a loader, a compiler), ours, or that of an import?"""
    others = (HOME + os.sep, "<frozen importlib", *(os.path.join(p, "") for p in sys.modules["torch"].__path__))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(others) and not file.startswith(_MINE):
            return True
        if not is_library(file):
            return False
        frame = frame.f_back
    return True
