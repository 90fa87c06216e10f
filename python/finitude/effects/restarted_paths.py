"""What a program that is run again from its start, in a second process, does to files of before: left as they are.

For systems that overlay no directories. Unlike `paths.py`, where the first run has done the same up to the moment, here
nothing of it is done: what the first process has made since it began is not there (`gone`), what else there was is as
it was, and is copied when it is opened to be written. What is made under new names is made, recorded in a journal, and
taken away by the first process afterwards. Only what Python's own functions do, in that process itself: databases but
SQLite's, files that libraries of C open, and commands that read what it has written, see the files themselves."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import threading

from .paths import Paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from ..base.types import AnyPath


class RestartedPaths(Paths):
    """From `begin` until `end`."""

    def __init__(self, gone: Collection[str]):
        process = os.getpid()
        self._threads = threading.local()
        super().__init__(lambda: os.getpid() == process)
        self._gone.update(gone)
        self._hidden = {os.path.dirname(path) for path in gone}  # folders that do not show all that they hold

    @property
    def _busy(self) -> bool:
        return getattr(self._threads, "busy", False)

    @_busy.setter
    def _busy(self, is_busy: bool) -> None:
        self._threads.busy = is_busy

    def begin(self) -> None:
        super().begin()
        original = io.open

        def stand_in(file, mode="r", *args, **kwargs):
            instead = self.to_open(file, mode)[1] if isinstance(mode, str) and self._is_mine() else None
            return original(file if instead is None else instead, mode, *args, **kwargs)

        for module in (builtins, io):
            self._patches.set(module, "open", stand_in)
        self._hold(os, "listdir", self._listdir)
        self._hold(os, "scandir", self._scandir)
        try:
            import sqlite3
        except ImportError:
            return
        for module in (sqlite3, sqlite3.dbapi2):
            self._hold(module, "connect", self._connect)

    def _is_there(self, path):
        return path in self.others or path not in self._gone and os.path.lexists(path)

    def _goes(self, path):
        self._gone.add(path)
        self._hidden.add(os.path.dirname(path))

    def to_open(self, file: Any, mode: str) -> tuple[str | None, str | None]:
        if isinstance(file, (str, bytes, os.PathLike)) and not self._busy and not set("xr").isdisjoint(mode):
            self._busy = True
            try:
                key = self.key(file)
                if "r" in mode:
                    self.missing(file, key)
                elif self._is_there(key):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(file))
            finally:
                self._busy = False
        return super().to_open(file, mode)

    def another(self, key: str, empty: int) -> str | None:
        if key not in self.others and not os.path.lexists(key):
            if os.path.isdir(os.path.dirname(key)):
                self._has_made(key)
            return None
        return super().another(key, empty)

    # Each as in `Paths`.

    def _mkdir(self, original, path, *args, **kwargs):
        if kwargs.get("dir_fd") is not None:
            return ((path, *args), kwargs), None
        name = self._name(path)
        if name in self._gone:
            self._gone.discard(name)
            return None, None
        return self._makes(name, original, path, *args, **kwargs)

    def _makes(self, name, original, *args, **kwargs):
        original(*args, **kwargs)
        self._has_made(name)
        return None, None

    def _symlink(
        self, original: Callable[..., Any], source: Any, target: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        if kwargs.get("dir_fd") is not None:
            return ((source, target, *args), kwargs), None
        name = self._name(target)
        if name in self._gone and name not in self.others:
            self._gone.discard(name)  # the one of the first run, wherever it leads
            return None, None
        return self._makes(name, original, source, target, *args, **kwargs)

    def _take_away(self, path: AnyPath, really: Callable[[], Any]) -> tuple[Any, Any]:
        name = self._name(path)
        if not self._is_there(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        if name in self.made and name not in self.others:
            really()
            self.made.pop(name, None)
            return None, None
        self._forget(name)
        self._goes(name)
        return None, None

    def _rmtree(self, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if kwargs.get("dir_fd") is not None or self._name(path) in self.made:
            return ((path, *args), kwargs), None
        for folder, inner, files in os.walk(self._name(path)):
            for name in (*inner, *files):
                self._forget(os.path.join(folder, name))
                self._goes(os.path.join(folder, name))
        return self._take_away(path, lambda: None)

    def _rename(self, original: Callable[..., Any], source: Any, target: Any, **kwargs: Any) -> tuple[Any, Any]:
        if any(v is not None for v in kwargs.values()):
            return ((source, target), kwargs), None
        a, b = self._name(source), self._name(target)
        if not self._is_there(a):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(source))
        if a in self.made and (b in self.made or not os.path.lexists(b)):
            original(source, target)
            self.made.pop(a)
            self._has_made(b)
            return None, None
        if os.path.isdir(a):
            return None, None  # where it leads is not known
        content = self.others.get(a, a)
        if not os.path.exists(content):
            open(content, "wb").close()
        if os.path.lexists(b) and b not in self.made:
            self.others[b] = self.others.get(b) or self._new()
            shutil.copyfile(content, self.others[b])
        else:
            shutil.copyfile(content, b)
            self._has_made(b)
        return self._take_away(source, lambda: os.unlink(a))

    _replace = _rename

    def _move(
        self, original: Callable[..., Any], source: Any, target: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        real = (
            os.path.join(target, os.path.basename(os.fspath(source).rstrip("/"))) if os.path.isdir(target) else target
        )
        self._rename(os.rename, source, real)
        return None, real

    def _open(self, original, path, flags, mode=0o777, *, dir_fd=None):
        if dir_fd is not None or flags & os.O_TMPFILE == os.O_TMPFILE:
            return ((path, flags, mode), {"dir_fd": dir_fd}), None
        key = self.key(path)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            self.missing(path, key)
            return ((self.others.get(key, path), flags, mode), {}), None
        if not self._is_there(key) and not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        if flags & os.O_EXCL and self._is_there(key):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
        other = self.another(key, flags & os.O_TRUNC)
        return ((path, flags, mode) if other is None else (other, flags & ~os.O_EXCL | os.O_CREAT, mode), {}), None

    def _write(self, original: Callable[..., Any], fd: int, data: Any, *args: Any) -> tuple[Any, Any]:
        return ((fd, data, *args), {}), None

    _pwrite = _write

    def _writev(self, original, fd, buffers):
        return ((fd, buffers), {}), None

    def _ftruncate(self, original, fd, length):
        return ((fd, length), {}), None

    def _listdir(self, original, path="."):
        if not isinstance(path, (str, bytes, os.PathLike)):
            return ((path,), {}), None
        folder, names = self.key(path), original(path)
        self.missing(path, folder)
        return None, [n for n in names if self._is_shown(folder, n)] if folder in self._hidden else names

    def _is_shown(self, folder, name):
        path = os.path.join(folder, os.fsdecode(name))
        return path in self.others or path not in self._gone

    def _scandir(self, original, path="."):
        if (
            not isinstance(path, (str, bytes, os.PathLike))
            or (folder := self.key(path)) not in self._hidden
            and folder not in self._gone
        ):
            return ((path,), {}), None
        self.missing(path, folder)
        return None, _Entries(original(path), lambda entry: self._is_shown(folder, entry.name))

    def _connect(self, original, database, *args, **kwargs):
        is_file = (
            isinstance(database, (str, bytes, os.PathLike))
            and not kwargs.get("uri")
            and os.fsdecode(database) not in ("", ":memory:")
        )
        if is_file and (other := self.another(self.key(database), False)) is not None:
            database = other
        return ((database, *args), kwargs), None


class _Entries:
    """What `os.scandir` gives, but for what is not there."""

    def __init__(self, entries, is_shown):
        self._entries, self._is_shown = entries, is_shown

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        while not self._is_shown(entry := next(self._entries)):
            pass
        return entry

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries.close()
