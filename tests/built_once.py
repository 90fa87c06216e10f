"""What tests compile is compiled once in a run of them, whichever of its processes comes to it first."""

import fcntl
import pathlib
import shutil

_folder = None  # that all processes of the run have; set by conftest.py, which pytest removes it for
_made = {}


def share(folder):
    global _folder
    _folder = pathlib.Path(folder)


def made(name, make):
    """The folder that make(folder) has filled, in this process or in another one."""
    if _folder is None:
        raise RuntimeError("only pytest has a folder that its processes share")
    if name in _made:
        return _made[name]
    whole, part = _folder / f"built {name}", _folder / f"in part {name}"
    with open(_folder / f"lock {name}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(part, ignore_errors=True)  # of one that failed
            part.mkdir()
            make(part)
            part.rename(whole)
    _made[name] = whole
    return whole
