"""What a second run in place would write to files a second time is held: lines to open text files, lines appended to files
that it opens itself, points given to a logger that sends them elsewhere.

Held where dropping them leaves no trace: below a text file there is nothing that counts what was written. A compressed
stream or a database would be broken by it; those are watched, and named if they were written twice. Files that are
written as a whole (a checkpoint) come out the same and are left alone.
"""

import builtins
import fcntl
import gc
import io
import os
import stat
import sys
import tempfile
import threading

from ._places import is_library

# Loggers whose points go to another thread or process: (module, class, methods). Held for the thread that trains.
LOGGERS = [
    ("tensorboard.summary.writer.event_file_writer", "EventFileWriter", ("add_event",)),
    ("wandb.sdk.wandb_run", "Run", ("_log", "alert")),
]


def _text_files():
    """{descriptor: the text files on it}: plain ones, written only, of no other layer's making."""
    found, shared = {}, set()
    for it in gc.get_objects():
        kind = type(it)
        try:
            if kind is io.TextIOWrapper and not it.closed and it.writable():
                plain = type(it.buffer) is io.BufferedWriter and type(it.buffer.raw) is io.FileIO
                (found.setdefault(it.fileno(), []).append(it) if plain else shared.add(it.fileno()))
        except (OSError, ValueError, AttributeError):
            continue
    return {fd: files for fd, files in found.items() if fd > 2 and fd not in shared and _is_written_only(fd)}


def _me():
    """This thread, and not one of a process that was forked from it."""
    return os.getpid(), threading.get_ident()


def _is_written_only(fd):
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    except OSError:
        return False


def _others_run_user_code():
    """Does a thread beside this one run code of the program's own? It may write to the same files."""
    me = threading.get_ident()
    for ident, frame in sys._current_frames().items():
        while ident != me and frame is not None:
            file = frame.f_code.co_filename
            if not is_library(file) and "site-packages" not in file:
                return True
            frame = frame.f_back
    return False


def _sizes():
    """{(descriptor, its file): size} of the ordinary files that are open for writing."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = int(name)
            if fd > 2 and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                what = os.fstat(fd)
                if stat.S_ISREG(what.st_mode):
                    found[fd, what.st_dev, what.st_ino] = what.st_size
        except OSError:
            continue
    return found


class HeldFiles:
    """From now on until `end`."""

    def __init__(self):
        self._swapped, self._methods, self._opens = [], [], []
        self._me = _me()
        self._sizes, self._files = {}, {}
        try:
            self._begin()
        except Exception:
            self.end()
            raise

    def _begin(self):
        self._files = {} if _others_run_user_code() else _text_files()
        for fd, files in self._files.items():
            try:
                for file in files:
                    file.flush()
                copy, inherited = os.dup(fd), os.get_inheritable(fd)
            except (OSError, ValueError):
                continue
            sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(sink, fd, inheritable=False)
            os.close(sink)
            self._swapped.append((fd, copy, inherited))
        self._sizes = _sizes()
        for module, name, methods in LOGGERS:
            owner = getattr(sys.modules.get(module), name, None)
            for method in methods if owner is not None else ():
                if method in owner.__dict__:
                    self._hold(owner, method)
        self._hold_open()

    def _hold(self, owner, name):
        original, mine = owner.__dict__[name], self._me

        def method(this, *args, **kwargs):
            return None if _me() == mine else original(this, *args, **kwargs)

        setattr(owner, name, method)
        self._methods.append((owner, name, original))

    def _hold_open(self):
        """A file that is opened to append, or must not exist yet, is one that goes away."""
        original, mine = io.open, self._me

        def stand_in(file, mode="r", *args, **kwargs):
            appends = isinstance(mode, str) and ("a" in mode or "x" in mode) and not isinstance(file, int)
            if not appends or _me() != mine or os.path.realpath(os.fsdecode(file)).startswith("/dev/"):
                return original(file, mode, *args, **kwargs)
            fd, path = tempfile.mkstemp(prefix="finitude-")
            os.close(fd)
            try:
                return original(path, mode.replace("x", "w"), *args, **kwargs)
            finally:
                os.unlink(path)

        for module in (builtins, io):
            self._opens.append((module, module.open))
            module.open = stand_in

    def end(self):
        """Names of the files that were written a second time."""
        while self._opens:
            module, original = self._opens.pop()
            module.open = original
        while self._methods:
            setattr(*self._methods.pop())
        for file in (f for files in self._files.values() for f in files):
            try:
                file.flush()
            except (OSError, ValueError):
                pass  # closed meanwhile
        twice = []
        for (fd, device, inode), size in _sizes().items():
            before = self._sizes.get((fd, device, inode))
            if before is not None and size > before:
                twice.append(_name(fd))
        while self._swapped:
            fd, copy, inherited = self._swapped.pop()
            if _is_devnull(fd):  # else the second run closed it, and another file has its number
                os.dup2(copy, fd, inherited)
            os.close(copy)
        return sorted(set(twice))


def _is_devnull(fd):
    try:
        return os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
    except OSError:
        return False


def _name(fd):
    try:
        return os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"))
    except (OSError, ValueError):
        return f"descriptor {fd}"
