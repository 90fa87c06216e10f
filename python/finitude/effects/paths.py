"""What a second run in place does to files by their names, besides opening them: `os.mkdir`, `os.remove`, `os.rename`
and their like, `shutil.rmtree` and `move`, `os.open` and `os.write`, `torch.save`.

The first run has done it, and the second would fail (what was renamed is not there any more, what was made is there
already) or undo it. So what is done to a file of before is skipped, and the names are answered for as if it had been
done: in `others` are those that replace another file, in `gone` those that the second run has taken away. What it
makes again itself is made, and may be taken away again."""

from __future__ import annotations

import errno
import fcntl
import functools
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import time

from ..base.patches import Patches
from .known_libraries import SAVERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import AnyPath

MAX_BYTES = 64 << 20  # of a file that is opened to be added to: its content is copied
TICK = 0.02  # seconds that a clock of a file system is waited for

MADE = "made"  # below `of_copy`: the paths that a copy of the process has made, each ended by a zero byte
of_copy: str | None = (
    None  # in a copy of the process that is ended without a word: the folder that is thrown away after it
)
LOOKS = (
    "stat",
    "lstat",
    "access",
    "chmod",
    "utime",
    "chown",
    "getxattr",
    "setxattr",
    "listxattr",
)  # at the file that a name refers to


def _is_path(it):
    return isinstance(it, (str, bytes, os.PathLike))


class Paths:
    """is_mine() -> bool: is it the thread that trains that calls?"""

    def __init__(self, is_mine: Callable[[], bool]):
        self.others = {}  # path -> the other file of that name
        self.made = {}  # path -> True: what the second run itself made, and did not take away again
        self._is_mine, self._gone, self._own = is_mine, set(), set()
        self._fds = []  # (descriptor, path, identity) opened by number
        self._folder: str | None = None
        self._patches, self._busy, self._began, self._count = Patches(), False, 0, 0

    # -- what names refer to ------------------------------------------------------------------

    def folder(self) -> str:
        if self._folder is None:
            self._folder = os.path.realpath(of_copy or tempfile.mkdtemp(prefix="finitude-"))
        return self._folder

    def key(self, path: AnyPath) -> str:
        return os.path.realpath(os.fsdecode(path))

    def _name(self, path: AnyPath) -> str:
        """As `key`, but a link is itself."""
        folder, name = os.path.split(os.fsdecode(path).rstrip("/"))
        return os.path.join(os.path.realpath(folder), name)

    def missing(self, path: AnyPath, key: str) -> None:
        """Raises what the system would, were the file gone that the second run has taken away."""
        if key in self._gone and key not in self.others:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))

    def to_open(self, file: Any, mode: str) -> tuple[str | None, str | None]:
        """(path, the other file that is opened instead or None)."""
        if self._busy or not _is_path(file):
            return None, None
        self._busy = True
        try:
            key = self.key(file)
            if any(c in mode for c in "wax+"):
                self.another(key, "w" in mode or "x" in mode)
            else:
                self.missing(file, key)
            return key, self.others.get(key)
        finally:
            self._busy = False

    def another(self, key: str, empty: int) -> str | None:
        """The other file for a name, with the same content or none yet. None: it cannot have one."""
        if key in self.others:
            return self.others[key]
        exists = os.path.exists(key) and key not in self._gone
        if key in self.made or not exists and os.path.dirname(key) in self.made:
            self._has_made(key)  # a folder that it made is not to lack what it has put there
            return None
        if exists and not os.path.isfile(key) or not exists and not os.path.isdir(os.path.dirname(key)):
            return None  # a device, or an error that is to be what it was
        try:
            other = self._new()
            if exists and not empty:
                if os.path.getsize(key) > MAX_BYTES:
                    return None
                shutil.copyfile(key, other)
        except OSError:  # no room for it
            return None
        self.others[key] = other
        return other

    def _new(self) -> str:
        self._count += 1
        return os.path.join(self.folder(), str(self._count))

    def is_ours(self, path: str) -> bool:
        return self._folder is not None and path.startswith(self._folder + os.sep)

    def opened(self, fd: int) -> None:
        found = os.fstat(fd)
        self._own.add((found.st_dev, found.st_ino))

    def _is_new(self, path):
        """Has the second run made it, or changed it?"""
        return path in self.made or os.lstat(path).st_ctime_ns > self._began

    def _has_made(self, path: str) -> None:
        self.made[path] = True
        if of_copy is not None:
            with io.FileIO(os.path.join(of_copy, MADE), "a") as f:
                f.write(os.fsencode(path) + b"\0")

    def _forget(self, key: str) -> None:
        self.others.pop(key, None)
        self.made.pop(key, None)

    # -- stand-ins -----------------------------------------------------------------------------

    def begin(self) -> None:
        self._began = self._now()
        for name in (
            "mkdir",
            "rmdir",
            "remove",
            "unlink",
            "rename",
            "replace",
            "symlink",
            "link",
            "truncate",
            "open",
            "write",
            "pwrite",
            "writev",
            "ftruncate",
        ):
            self._hold(os, name, getattr(self, f"_{name}"))
        for name in LOOKS:
            self._hold(os, name, self._look)
        self._hold(shutil, "rmtree", self._rmtree)
        self._hold(shutil, "move", self._move)
        for module, name, position, word in SAVERS:
            if (owner := sys.modules.get(module)) is not None and hasattr(owner, name):
                self._hold(owner, name, functools.partial(self._save, position, word))
        if (
            accessor := getattr(pathlib, "_NormalAccessor", None)
        ) is not None:  # Python 3.10: it has the functions themselves
            for name in (
                "mkdir",
                "rmdir",
                "unlink",
                "rename",
                "replace",
                "symlink",
                "link",
                "stat",
                "chmod",
                "listdir",
                "scandir",
                "open",
            ):
                if name in accessor.__dict__:
                    source: Any = __import__("io") if name == "open" else os
                    self._patches.set(
                        accessor, name, staticmethod(lambda *a, _m=source, _n=name, **k: getattr(_m, _n)(*a, **k))
                    )

    def _now(self):
        """The clock of the files, which does not advance for some milliseconds: what is made from here on is later."""
        marker = os.path.join(self.folder(), "now")
        open(marker, "w").close()
        first, limit = os.stat(marker).st_ctime_ns, time.monotonic() + TICK
        while time.monotonic() < limit:
            os.utime(marker)
            if os.stat(marker).st_ctime_ns > first:
                break
            time.sleep(0.0005)
        return first

    def _hold(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def stand_in(*args, **kwargs):
            if self._busy or not self._is_mine():
                return original(*args, **kwargs)
            self._busy = True
            try:
                again, result = instead(original, *args, **kwargs)
            except OSError:
                raise  # what the system says of it
            except Exception:  # an internal failure, or a call that is none: what it says is up to the function
                again, result = (args, kwargs), None
            finally:
                self._busy = False
            return original(*again[0], **again[1]) if again is not None else result

        self._patches.set(owner, name, stand_in)

    def end(self) -> None:
        """The functions are the program's own again."""
        self._patches.undo()

    def close(self) -> list[str]:
        """Returns what the second run made that is there still, besides what the first did."""
        for fd, key, identity in self._fds:
            try:
                found = os.fstat(fd)
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == identity and os.path.exists(key):
                go_on_in(fd, key)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return [path for path in self.made if os.path.lexists(path)]

    # Each returns (the arguments with which the original is to be called or None, what is returned instead of it).

    def _mkdir(self, original, path, *args, **kwargs):
        if kwargs.get("dir_fd") is not None or not _is_path(path):
            return ((path, *args), kwargs), None
        name = self._name(path)
        if os.path.lexists(name):
            self._gone.discard(name)
            return None, None
        original(path, *args, **kwargs)
        self._has_made(name)
        return None, None

    def _rmdir(self, original, path, **kwargs):
        if kwargs.get("dir_fd") is not None or not _is_path(path):
            return ((path,), kwargs), None
        return self._take_away(path, lambda: original(path))

    def _remove(self, original, path, **kwargs):
        return self._rmdir(original, path, **kwargs)

    _unlink = _remove

    def _rmtree(self, original, path, *args, **kwargs):
        if kwargs.get("dir_fd") is not None or not _is_path(path):
            return ((path, *args), kwargs), None
        below = self._name(path) + os.sep
        for key in [k for k in (*self.others, *self.made) if k.startswith(below)]:
            self._forget(key)
        return self._take_away(path, lambda: original(path, *args, **kwargs))

    def _take_away(self, path: AnyPath, really: Callable[[], Any]) -> tuple[Any, Any]:
        name = self._name(path)
        if name in self.others:
            self._forget(name)
            self._gone.add(name)
        elif os.path.lexists(name):
            if self._is_new(name):
                really()
                self.made.pop(name, None)
            self._gone.add(name)
        return None, None

    def _rename(self, original: Callable[..., Any], source: Any, target: Any, **kwargs: Any) -> tuple[Any, Any]:
        if any(v is not None for v in kwargs.values()) or not _is_path(source) or not _is_path(target):
            return ((source, target), kwargs), None
        a, b = self._name(source), self._name(target)
        if a in self.others:
            self.others[b] = self.others[a]
        elif not os.path.lexists(a) or a in self._gone:
            return None, None
        elif self._is_new(a) and os.path.isfile(a) and os.path.isfile(b) and not self._is_new(b):
            other = self._new()  # the one of before stays, as the first run has put it there
            shutil.move(a, other)
            self.others[b] = other
        elif self._is_new(a):
            was_there = os.path.lexists(b)
            original(source, target)
            self._forget(b)
            if not was_there:
                self._has_made(b)
        elif not os.path.lexists(b) and os.path.isfile(a) and os.path.getsize(a) <= MAX_BYTES:
            self.others[b] = self._new()
            shutil.copyfile(a, self.others[b])
        self._forget(a)
        self._gone.add(a)
        self._gone.discard(b)
        return None, None

    _replace = _rename

    def _move(self, original, source, target, *args, **kwargs):
        if not _is_path(source) or not _is_path(target):
            return ((source, target, *args), kwargs), None
        real = (
            os.path.join(target, os.path.basename(os.fspath(source).rstrip("/"))) if os.path.isdir(target) else target
        )
        a = self._name(source)
        if a not in self.others and os.path.lexists(a) and self._is_new(a):
            return ((source, target, *args), kwargs), None
        self._rename(lambda *_: None, source, real)
        return None, real

    def _symlink(self, original, source, target, *args, **kwargs):
        if kwargs.get("dir_fd") is not None:
            return ((source, target, *args), kwargs), None
        name = self._name(target)
        if os.path.lexists(name):
            self._gone.discard(name)
            return None, None
        original(source, target, *args, **kwargs)
        self._has_made(name)
        return None, None

    def _link(self, original, source, target, **kwargs):
        if _is_path(source) and self._name(source) in self.others:
            self.others[self._name(target)] = self.others[self._name(source)]
            return None, None
        return self._symlink(original, source, target, **kwargs)

    def _look(self, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if kwargs.get("dir_fd") is None and _is_path(path):
            key = self.key(path)
            if key in self.others:
                path = self.others[key]
                if not os.path.exists(path):
                    open(path, "wb").close()
            elif key in self._gone and original.__name__ == "access":
                return None, False
            else:
                self.missing(path, key)
        return ((path, *args), kwargs), None

    def _truncate(self, original, path, length):
        if _is_path(path) and (other := self.another(self.key(path), False)) is not None:
            path = other
        return ((path, length), {}), None

    def _open(self, original, path, flags, mode=0o777, *, dir_fd=None):
        if dir_fd is not None or not _is_path(path) or flags & os.O_TMPFILE == os.O_TMPFILE:
            return ((path, flags, mode), {"dir_fd": dir_fd}), None
        key = self.key(path)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            self.missing(path, key)
            return ((self.others.get(key, path), flags, mode), {}), None
        if key not in self.others and not os.path.exists(key):
            fd = original(path, flags, mode)
            self.opened(fd)
            self._has_made(key)
            return None, fd
        other = self.another(key, flags & (os.O_TRUNC | os.O_EXCL))
        if other is None:
            return ((path, flags, mode), {}), None
        fd = original(other, flags | os.O_CREAT, mode)
        self.opened(fd)
        self._fds.append((fd, key, (os.fstat(fd).st_dev, os.fstat(fd).st_ino)))
        return None, fd

    def _is_of_before(self, fd):
        """An ordinary file that was open when the second run began."""
        if not isinstance(fd, int) or fd <= 2:
            return False
        found = os.fstat(fd)
        return stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) not in self._own

    def _write(self, original: Callable[..., Any], fd: int, data: Any, *args: Any) -> tuple[Any, Any]:
        if self._is_of_before(fd):
            return None, memoryview(data).nbytes
        return ((fd, data, *args), {}), None

    _pwrite = _write

    def _writev(self, original, fd, buffers):
        if self._is_of_before(fd):
            return None, sum(memoryview(b).nbytes for b in buffers)
        return ((fd, buffers), {}), None

    def _ftruncate(self, original, fd, length):
        return (None, None) if self._is_of_before(fd) else (((fd, length), {}), None)

    def _save(self, position, word, original, *args, **kwargs):
        path: Any = args[position] if len(args) > position else kwargs.get(word)
        if _is_path(path) and (other := self.another(self.key(path), True)) is not None:
            if len(args) > position:
                args = (*args[:position], other, *args[position + 1 :])
            else:
                kwargs = {**kwargs, word: other}
        return (args, kwargs), None


def take_away_made(folder: str) -> None:
    """What a copy of the process, which has ended, made beside the files of the program; and its folder. A folder that
    holds anything else stays: other programs may have put it there."""
    try:
        with open(os.path.join(folder, MADE), "rb") as f:
            made = f.read().split(b"\0")[:-1]
    except OSError:
        made = []
    for path in reversed(made):  # what is in a folder before the folder
        try:
            os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        except OSError:  # it has taken it away itself
            continue
    shutil.rmtree(folder, ignore_errors=True)


def go_on_in(number: int, path: str) -> None:
    """A descriptor that stays open after the second run is, from then on, of the file of that name, which the first run
    wrote."""
    try:
        own = os.open(path, fcntl.fcntl(number, fcntl.F_GETFL) & ~(os.O_TRUNC | os.O_EXCL | os.O_CREAT))
        os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, number, os.get_inheritable(number))
        os.close(own)
    except OSError:
        pass  # what the script writes there later is lost with the other file
