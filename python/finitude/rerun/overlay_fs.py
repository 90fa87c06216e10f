"""The files that a second process writes are kept separate from those of the first, and thrown away.

In a mount namespace of its own the directories that the program writes to are overlaid: it reads what is there, and
what it writes, renames or removes lies in a scratch directory. Needs user namespaces and overlayfs, which some
containers do not give: there the second process's own functions hold what it does (`restarted_paths.py`), and what was
written a second time all the same is looked for. Files that the first process made since it began are not there for the
second, as they were not for the first. What we ourselves write for the run (a capsule) is to stay: its directory is put
over the overlay as it is."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time

from ..effects import paths
from ..effects.restarted_paths import RestartedPaths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ENVIRONMENT = "FINITUDE_OVERLAY"  # for the second process: the scratch directory
_SYSTEM = ("/", "/dev", "/proc", "/sys", "/run")
_MOST_FILES, _MOST_SECONDS = 20_000, 1.0
_MOST_NAMES = 8
_held = None  # in a second process
_HELD = "held-"  # below the scratch directory: what a second process holds itself


class Overlay:
    """What the second process is started with. scratch: a directory that is removed afterwards. stay: directories where
    what is written is written."""

    def __init__(
        self,
        scratch: str,
        cwd: str,
        arguments: Sequence[str],
        since: float,
        left_out: Sequence[str] = (),
        fresh: bool = True,
        stay: Sequence[str | None] = (),
    ):
        from .. import _native

        self._native, self.scratch, self.cwd = _native, scratch, cwd
        self.stay = [os.path.realpath(d) for d in stay if d and os.path.isdir(d)]
        written = _outermost([cwd, *_named(arguments, cwd), *_open_for_writing()])  # the ring of steps is open too
        self.directories = [d for d in written if not self._stays(d)]
        self.inside = [d for d in self.directories if not _is_below(scratch, d)]
        left_out = [*map(os.path.realpath, left_out), *self.stay]
        self.made = _made_since(self.inside, since, left_out) if fresh else []
        self._list_file, self._before = os.path.join(scratch, "overlaid"), {}
        self._left_out = left_out
        with open(os.path.join(scratch, "plan"), "w", encoding="utf-8") as f:
            json.dump({"directories": self.directories, "made": self.made}, f)
        self._plan = []
        for number, directory in enumerate(self.inside):
            upper, work = (os.path.join(scratch, f"{kind}{number}") for kind in ("upper", "work"))
            os.mkdir(upper)
            os.mkdir(work)
            self._plan.append((os.fsencode(directory), os.fsencode(upper), os.fsencode(work)))

    def _stays(self, path):
        return any(_is_below(path, d) for d in self.stay)

    def before_exec(self) -> None:
        """In the child, between fork and exec. What cannot be done is left; `not_kept` names it."""
        overlaid, why_not = self._native.overlay_directories(self._plan, list(map(os.fsencode, self.stay)))
        done = list(map(os.fsdecode, overlaid))
        if why_not and os.environ.get("FINITUDE_DEBUG"):
            os.write(2, f"finitude: not all directories are overlaid ({why_not})\n".encode())
        os.chdir(self.cwd)
        for path in reversed(self.made):  # what is in a directory before the directory
            if any(_is_below(path, d) for d in done):
                try:
                    os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
                except OSError:
                    pass
        with open(self._list_file, "w", encoding="utf-8", errors="surrogateescape") as f:
            f.write("\n".join(done))

    def not_kept(self):
        """The directories whose files could not be overlaid, after the child was started."""
        done = _overlaid(self.scratch)
        return [d for d in self.directories if d not in done]

    def began(self) -> None:
        """The child was started, and has come no further than to importing torch."""
        self._before = {d: _states(d, self._left_out) for d in self.not_kept()}

    def clear(self) -> bool:
        """Takes away what the child has made, after its end. Did it hold anything itself?"""
        held = [os.path.join(self.scratch, name) for name in os.listdir(self.scratch) if name.startswith(_HELD)]
        for folder in held:
            paths.take_away_made(folder)
        return bool(held)

    def ended(self) -> str:
        """What has to be said of the files, after the child has ended."""
        held = self.clear()
        changed, unknown = [], []
        for directory, before in self._before.items():
            now = _states(directory, self._left_out)
            if before is None or now is None:
                unknown.append(directory)
            else:
                changed += [p for p in sorted({*before, *now}) if before.get(p) != now.get(p)]
        said = [written_below(unknown, held)] if unknown else []
        if changed:
            more = f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
            names = ", ".join(os.path.relpath(p, self.cwd) for p in changed[:_MOST_NAMES])
            said.append(f"written a second time, or changed meanwhile: {names}{more}")
        return "; ".join(said)


def written_below(directories: Sequence[str], held: bool = False) -> str:
    """held: what goes through Python's functions was not."""
    how = " by other means than Python's" if held else ""
    return f"files that it writes{how} below {', '.join(directories[:3])} were written a second time"


def _overlaid(scratch):
    try:
        with open(os.path.join(scratch, "overlaid"), encoding="utf-8", errors="surrogateescape") as f:
            return f.read().splitlines()
    except OSError:
        return []


def hold_the_rest() -> None:
    """In the second process: what the system does not overlay, its own functions do, until `let_go`."""
    global _held
    scratch = os.environ.pop(ENVIRONMENT, None)
    if not scratch:
        return
    done = _overlaid(scratch)
    with open(os.path.join(scratch, "plan"), encoding="utf-8") as f:
        plan = json.load(f)
    if done and all(d in done for d in plan["directories"]):
        return
    paths.of_copy = tempfile.mkdtemp(prefix=_HELD, dir=scratch)
    _held = RestartedPaths([p for p in plan["made"] if not any(_is_below(p, d) for d in done)])
    _held.begin()


def let_go() -> None:
    """What we write ourselves from here on is to stay."""
    global _held
    if _held is not None:
        _held.end()
        _held = None


def directories_of(cwd: str, arguments: Sequence[str]) -> list[str]:
    """Where a program may write: where it runs, and what its arguments name."""
    return _outermost([cwd, *_named(arguments, cwd)])


def scratch_outside(*directories: str) -> str:
    """The path of a new directory, in none of these where there is a choice."""
    places = [tempfile.gettempdir(), "/var/tmp", "/dev/shm"]
    place = next(
        (p for p in places if os.access(p, os.W_OK) and not any(_is_below(p, d) for d in directories)), places[0]
    )
    return tempfile.mkdtemp(prefix="finitude-", dir=place)


def _is_below(path, directory):
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _outermost(directories):
    found = []
    for d in sorted({os.path.realpath(d) for d in directories}, key=len):
        if (
            d not in _SYSTEM
            and os.path.isdir(d)
            and not any(_is_below(d, f) for f in found)
            and not any(_is_below(d, s) for s in _SYSTEM[1:] if s != "/run")
        ):
            found.append(d)
    return found


def _named(arguments, cwd):
    """Directories that arguments name, or the directories of files that they name."""
    for argument in arguments:
        path = os.path.join(cwd, argument.partition("=")[2] or argument)
        if len(path) > 4000 or "\0" in path:
            continue
        if os.path.isdir(path):
            yield path
        elif os.sep in argument and os.path.isdir(os.path.dirname(path)):
            yield os.path.dirname(path)


def _open_for_writing():
    """Directories of the ordinary files that this process writes to."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
            with open(f"/proc/self/fdinfo/{fd}") as f:
                flags = next(int(line.split()[1], 8) for line in f if line.startswith("flags:"))
            if flags & os.O_ACCMODE != os.O_RDONLY and stat.S_ISREG(os.fstat(int(fd)).st_mode) and os.path.exists(path):
                yield os.path.dirname(path)
        except (OSError, StopIteration, ValueError):
            continue


def _made_since(directories, since, left_out):
    """Files and directories that came into being since that time, but for source code and what is excluded."""
    from .. import _native

    found = []
    for path, what in _below(directories, left_out):
        if path is not None and what.st_ctime > since and not path.endswith(".py"):
            if _native.birth_time(os.fsencode(path)) > since:
                found.append(path)
    return found


def _states(directory, left_out):
    """{path: what changes as it is written}, but for what this process prints to; None where there are too many."""
    found, ours = {}, [(what.st_dev, what.st_ino) for what in map(os.fstat, _open_of((1, 2)))]
    for path, what in _below([directory], left_out):
        if path is None:
            return None
        if (what.st_dev, what.st_ino) in ours:
            continue
        found[path] = (
            stat.S_IFMT(what.st_mode),
            *((what.st_ino, what.st_size, what.st_mtime_ns) if not stat.S_ISDIR(what.st_mode) else ()),
        )
    return found


def _open_of(numbers):
    return [n for n in numbers if os.path.exists(f"/proc/self/fd/{n}")]


def _below(directories, left_out):
    """(path, what `lstat` says), folders before what is in them; (None, None) where it takes too long, and ends."""
    looked, until = 0, time.monotonic() + _MOST_SECONDS
    for directory in directories:
        for folder, inner, files in os.walk(directory):
            inner[:] = [d for d in inner if os.path.join(folder, d) not in left_out and d != "__pycache__"]
            for name in (*inner, *files):
                looked += 1
                if looked > _MOST_FILES or time.monotonic() > until:
                    yield None, None
                    return
                path = os.path.join(folder, name)
                try:
                    yield path, os.lstat(path)
                except OSError:
                    continue
