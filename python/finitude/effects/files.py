"""What a second run in place would write to files a second time is held: what goes to open text files, to files that it
opens itself, and points given to a logger that sends them elsewhere.

Of a text file that is open for writing, the descriptor leads nowhere for as long, and to a copy where it is read too.
Below it there is nothing that counts what was written; a compressed stream or a database would be broken by that, so
those are watched, and named if they were written twice. Open databases skip what is written
(`databases.py`). A file that the second run opens for writing is another file with the same content, which it also
finds when it opens that name again (`paths.py`, as what is done to files by their names). All of it on the thread that
trains alone. What is done outside of the process is named (`external_effects.py`)."""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import re
import shutil
import stat
import sys
import threading
import weakref

from .. import _native
from ..base import working_folder
from ..base.patches import Patches
from ..base.robust import in_any_case
from ..program import optimizer_members
from .databases import Databases
from .external_effects import Outside
from .known_libraries import LOGGERS
from .output_suppression import HELD, is_over
from .paths import MAX_BYTES, Paths, go_on_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

_OWN: set[str] = set()  # databases that Finitude itself writes, in a thread of its own
OF_CAPSULES = re.compile(r"/step-\d+[^/]*\.partial-[0-9a-f]+-\d+-\d+-\d+/[^/]+$")  # that are being written


def note_own_database(path: str) -> None:
    """A database of SQLite that Finitude itself writes while the program trains, in a thread of its own. It and the
    files that SQLite keeps next to it are no side effect of the program."""
    real = os.path.realpath(path)
    _OWN.update((real, f"{real}-wal", f"{real}-shm", f"{real}-journal"))


def logger_classes() -> tuple[type, ...]:
    """Those of LOGGERS whose modules the program has loaded."""
    loaded = [getattr(sys.modules.get(module), name, None) for module, name, _ in LOGGERS]
    return tuple(kind for kind in loaded if isinstance(kind, type))


def _text_files():
    """{descriptor: the files on it}: text, or bytes without a buffer that are written only; of no other layer's
    making."""
    found, shared, raw, buffered = {}, set(), [], set()
    for it in _native.instances((io.TextIOWrapper, io.FileIO, io.BufferedWriter, io.BufferedRandom)):
        kind = type(it)
        try:
            if kind is io.TextIOWrapper and not it.closed and it.writable():
                plain = type(it.buffer) in (io.BufferedWriter, io.BufferedRandom) and type(it.buffer.raw) is io.FileIO
                (found.setdefault(it.fileno(), []).append(it) if plain else shared.add(it.fileno()))
            elif kind is io.FileIO and not it.closed and it.writable():
                raw.append(it)
            elif kind in (io.BufferedWriter, io.BufferedRandom) and not it.closed:
                buffered.add(it.fileno())
        except (OSError, ValueError, AttributeError):
            continue
    for it in raw:
        if it.fileno() not in buffered and not it.readable():
            found.setdefault(it.fileno(), []).append(it)
    return {fd: files for fd, files in found.items() if fd > 2 and fd not in shared and _is_ordinary(fd)}


def _me():
    """This thread, and not one of a process that was forked from it."""
    return os.getpid(), threading.get_ident()


def _is_ordinary(fd):
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


def _identity(fd):
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _output_files():
    """Files that are stdout or stderr. Other processes write to them too, such as ranks and loaders, and what this one
    prints is dropped (`output_suppression.py`)."""
    found = set()
    for fd in (1, 2):
        try:
            found.add(_identity(fd))
        except OSError:
            continue  # closed
    return found


def _states():
    """{(descriptor, its file): size and time} of the ordinary files that are open for writing. A database is as long as
    before. Of none that Finitude writes in the background."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = int(name)
            if fd > 2 and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                what = os.fstat(fd)
                path = os.readlink(f"/proc/self/fd/{fd}")
                if stat.S_ISREG(what.st_mode) and not OF_CAPSULES.search(path) and path not in _OWN:
                    found[fd, what.st_dev, what.st_ino] = what.st_size, what.st_mtime_ns
        except OSError:
            continue
    return found


class HeldFiles:
    """From now on until `end`."""

    def __init__(self):
        self.swapped, self._patches = [], Patches()
        self._opened, self._not_held = [], {}  # (weak reference to a file opened meanwhile, path); path -> its state
        self._me = _me()
        self._paths = Paths(lambda: _me() == self._me)
        self._outside = Outside(lambda: _me() == self._me, self._is_written)
        self._states, self._files, self._databases = {}, {}, None
        self._output_files = _output_files()
        HELD.append(self)
        try:
            self._begin()
        except Exception:
            self.end()
            raise

    def _begin(self) -> None:
        self._files = {} if optimizer_members.others_run_user_code() else _text_files()
        for fd, files in self._files.items():
            try:
                for file in files:
                    file.flush()
                positions = [(file, file.tell()) for file in files if file.readable()]
                sink = self._copy_of(fd) if positions else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            except (OSError, ValueError):
                continue  # such as text that is iterated over, which has no position
            copy, inherited, instead = os.dup(fd), os.get_inheritable(fd), _identity(sink)
            os.dup2(sink, fd, inheritable=False)
            os.close(sink)
            self.swapped.append((fd, copy, inherited, instead, positions))
        self._states = _states()
        for module, name, methods in LOGGERS:
            owner: Any = getattr(sys.modules.get(module), name, None)
            for method in methods if owner is not None else ():
                if method in owner.__dict__:
                    self._hold(owner, method)
        self._paths.begin()
        self._hold_open()
        self._outside.begin()
        self._databases = Databases(lambda: _me() == self._me)

    def _is_written(self, path):
        """A file is opened to be written, in whatever way; those that replace others are not looked at."""
        path = self._paths.key(path)
        is_noted = path in self._not_held or self._paths.is_ours(path) or path.startswith(("/dev/", "/proc/"))
        if not is_noted and not os.path.isdir(path):  # which is how a file without a name is made, or a temporary one
            self._not_held[path] = _state(path)

    def _copy_of(self, fd):
        """A descriptor of another file with the same content, at the same place."""
        if os.fstat(fd).st_size > MAX_BYTES:
            raise OSError("larger than what is copied")
        here, path = os.lseek(fd, 0, os.SEEK_CUR), os.path.join(self._paths.folder(), f"read-{fd}")
        shutil.copyfile(f"/proc/self/fd/{fd}", path)
        copy = os.open(path, fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND) | os.O_CLOEXEC)
        os.lseek(copy, here, os.SEEK_SET)
        return copy

    def _hold(self, owner: type, name: str) -> None:
        original, mine = owner.__dict__[name], self._me

        def method(this, *args, **kwargs):
            return None if _me() == mine else original(this, *args, **kwargs)

        self._patches.set(owner, name, method)

    def _hold_open(self):
        original, mine = io.open, self._me

        def stand_in(file, mode="r", *args, **kwargs):
            if _me() != mine or not isinstance(mode, str):
                return original(file, mode, *args, **kwargs)
            path, instead = self._paths.to_open(file, mode)
            opened = original(file if instead is None else instead, mode, *args, **kwargs)
            if instead is not None:
                self._opened.append((weakref.ref(opened), path))
            if instead is not None or path in self._paths.made:
                self._paths.opened(opened.fileno())
            return opened

        for module in (builtins, io):
            self._patches.set(module, "open", stand_in)

    def end(self) -> list[str]:
        """Names of the files that were written a second time, and what else was done twice."""
        is_over(self)
        *_, made, twice, _ = in_any_case(
            lambda: self._databases is not None and self._databases.end(),
            self._outside.end,
            self._paths.end,
            self._patches.undo,
            self._end_opened,
            self._paths.close,
            self._written,
            self._end_swapped,
        )
        twice = [*map(working_folder.relative, made), *twice]
        return [*sorted(set(twice)), *map(Done, self._outside.done)]

    def _end_opened(self):
        for file in (f for files in self._files.values() for f in files):
            try:
                file.flush()
            except (OSError, ValueError):
                pass  # closed meanwhile
        for reference, path in self._opened:
            _go_on_in(reference(), path)

    def _written(self):
        twice = [working_folder.relative(path) for path, state in self._not_held.items() if _state(path) != state]
        not_named = self._output_files | {instead for _, _, _, instead, _ in self.swapped}
        for (fd, *inode), state in _states().items():
            if tuple(inode) not in not_named and self._states.get((fd, *inode), state) != state:
                twice.append(_name(fd))
        return twice

    def _end_swapped(self):
        while self.swapped:
            fd, copy, inherited, instead, positions = self.swapped.pop()
            if _is_still(fd, instead):  # else the second run closed it, and another file has its number
                os.dup2(copy, fd, inherited)
                _go_to(positions)
            os.close(copy)


class Done(str):
    """What was done twice and is no file."""


def not_put_back(names: Iterable[str]) -> str:
    """What is said of objects that a second run has written and that could not be put back."""
    names = list(names)
    return f"; it also wrote a second time, and this could not be put back: {', '.join(names[:8])}" if names else ""


def written_twice(names: Sequence[str]) -> str:
    """The words for what `end` gave."""
    done = [n for n in names if isinstance(n, Done)]
    files = [n for n in names if not isinstance(n, Done)]
    return (f"; written twice: {', '.join(files[:8])}" if files else "") + (
        f"; done twice: {', '.join(done[:8])}" if done else ""
    )


def _is_still(fd, identity):
    try:
        return _identity(fd) == identity
    except OSError:
        return False


def _go_to(positions):
    """What was read ahead came from the copy."""
    for file, position in positions:
        try:
            file.seek(position)
        except (OSError, ValueError):
            continue


def _state(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _go_on_in(file, path):
    """A file that stays open after the second run is, from then on, the one of that name, which the first run wrote."""
    try:
        if file is None or file.closed or not os.path.exists(path):
            return
        if file.writable():
            file.flush()
        go_on_in(file.fileno(), path)
    except (OSError, ValueError):
        pass


def _name(fd):
    try:
        return working_folder.relative(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return f"descriptor {fd}"
