"""Files of the program in a second run: what it writes into those that it has open, or opens, is dropped.

Of a file that is open for writing, the descriptor leads nowhere for as long; one that it opens is another file, with the
same content, which it also finds when it opens that name again. Both only on the thread that trains.
"""

import builtins
import fcntl
import gc
import io
import os
import shutil
import stat
import tempfile
import threading
import weakref

MAX_BYTES = 64 << 20  # of a file that is opened to be added to: its content is copied
# Threads that write no files of the program's.
_HARMLESS = ("tqdm.", "torch.utils.data", "multiprocessing.")


class Held:
    """From its making to `end`."""

    def __init__(self):
        self._not_held = {}                     # path -> its state, to see whether it was written
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._moved = []                        # (file, descriptor, a copy of it)
        self._folder, self._others = None, {}   # path -> the other file of that name
        self._opened = []                       # (weak reference to a file opened meanwhile, path)
        self._open = builtins.open
        try:
            self._hold_open_files()
        except (OSError, ValueError):           # what has been moved by then goes back at the end
            pass
        builtins.open = io.open = self._open_another

    def _hold_open_files(self):
        files = _open_for_writing()
        if files and _others_may_write():       # on another thread, what is written is not of the second run
            for file in files:
                self._give_up(file.name)
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for file in files:
            number = file.fileno()
            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
                self._give_up(file.name)        # what it reads there is to be there
                continue
            inherited = os.get_inheritable(number)
            self._moved.append((file, number, os.dup(number), inherited))
            os.dup2(nowhere, number, inherited)
        os.close(nowhere)

    def _open_another(self, file, mode="r", *args, **kwargs):
        mine = threading.get_ident() == self._thread and os.getpid() == self._process
        if not mine or not isinstance(file, (str, bytes, os.PathLike)) or not isinstance(mode, str):
            return self._open(file, mode, *args, **kwargs)
        path = os.path.realpath(os.fsdecode(file))
        if path not in self._others and any(c in mode for c in "wax+"):
            self._make_another(path, mode)
        opened = self._open(self._others.get(path, file), mode, *args, **kwargs)
        if path in self._others:
            self._opened.append((weakref.ref(opened), path))
        return opened

    def _make_another(self, path, mode):
        exists = os.path.exists(path)
        if exists and (not os.path.isfile(path) or "x" in mode) or not exists and not os.path.isdir(os.path.dirname(path)):
            return                              # a device, or an error that is to be what it was
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="finitude-")
        other = os.path.join(self._folder, str(len(self._others)))
        if exists and "w" not in mode:
            if os.path.getsize(path) > MAX_BYTES:
                self._give_up(path)
                return
            shutil.copyfile(path, other)
        self._others[path] = other

    def _give_up(self, path):
        try:
            self._not_held[str(path)] = _state(path)
        except (OSError, ValueError):
            pass

    def end(self):
        """Returns the names of files that were written a second time."""
        builtins.open = io.open = self._open
        _flush([f for f, *_ in self._moved])
        while self._moved:
            file, number, copy, inherited = self._moved.pop()
            if not file.closed and file.fileno() == number:
                os.dup2(copy, number, inherited)
            os.close(copy)
        for reference, path in self._opened:
            _go_on_in(reference(), path)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return [path for path, state in self._not_held.items() if not os.path.exists(path) or _state(path) != state]


def _state(path):
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _go_on_in(file, path):
    """A file that stays open after the second run is, from then on, the one of that name, which the first run wrote."""
    if file is None or file.closed or not os.path.exists(path):
        return
    if file.writable():
        file.flush()
    number = file.fileno()
    own = os.open(path, fcntl.fcntl(number, fcntl.F_GETFL))
    os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(own, number, os.get_inheritable(number))
    os.close(own)


def _others_may_write():
    mine = threading.get_ident()
    return any(t.ident != mine and not f"{type(t).__module__}.".startswith(_HARMLESS)
               and not t.name.startswith("QueueFeederThread") for t in threading.enumerate())


def _is_written(number):
    """Is the descriptor one of a regular file that is open for writing?"""
    try:
        return stat.S_ISREG(os.fstat(number).st_mode) and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        return False


def _open_for_writing():
    """The files that Python code has open for writing; what is buffered for them has been written."""
    if not any(_is_written(int(name)) for name in os.listdir("/proc/self/fd") if int(name) > 2):
        return []                               # spares the walk over all objects
    files = [o for o in gc.get_objects() if type(o) is io.FileIO]
    files = [f for f in files if not f.closed and f.fileno() > 2 and _is_written(f.fileno())]
    _flush(files)
    return files


def _flush(files):
    """Whatever buffers what is written to one of these files hands it on."""
    if not files:
        return
    wanted = {id(f) for f in files}
    buffers = [o for o in gc.get_objects() if type(o) in (io.BufferedWriter, io.BufferedRandom) and _is_over(o, "raw", wanted)]
    wanted |= {id(b) for b in buffers}
    texts = [o for o in gc.get_objects() if type(o) is io.TextIOWrapper and _is_over(o, "buffer", wanted)]
    for layer in (*texts, *buffers):
        try:
            layer.flush()
        except (OSError, ValueError):
            pass


def _is_over(layer, name, wanted):
    try:
        return id(getattr(layer, name)) in wanted and not layer.closed
    except (ValueError, AttributeError):  # detached
        return False
