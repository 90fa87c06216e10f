"""How the program was started, for starting it again."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import time

from ..base import working_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ONCE = "its standard input, which can be read once only, is empty there"


class Start:
    """What a second process needs to start the same program from the same state."""

    def __init__(self, command: list[str] | None):
        self.command = command  # None: nothing that is started would do the same
        self.plain: list[str] | None = None  # the same program without us
        self.stdin = _standard_input() if command is not None else None
        self.cwd = working_folder.current()
        self.monotonic = time.monotonic()
        self.hash_seed = os.environ.get("PYTHONHASHSEED")
        state = random.getstate()
        self.seeds = {"python": [state[0], list(state[1]), state[2]], "numpy": None}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, position, has_gauss, cached = numpy.random.get_state()
            self.seeds["numpy"] = [kind, [int(k) for k in keys], position, has_gauss, cached]

    def input_again(self) -> int:
        """The standard input of a second process: that of this one, opened at the same position, or nothing."""
        kind, file, here = self.stdin or (None, None, 0)
        if kind != "file":
            return subprocess.DEVNULL
        try:
            number = os.open("/proc/self/fd/0", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return subprocess.DEVNULL
        found = os.fstat(number)
        if (found.st_dev, found.st_ino) != file:  # the program has put another one in its place
            os.close(number)
            return subprocess.DEVNULL
        os.lseek(number, here, os.SEEK_SET)
        return number

    def input_is_lost(self) -> bool:
        return self.stdin is not None and self.stdin[0] == "once"


def _standard_input():
    """("file", which, its position), ("once", None, 0) where what is read is gone, or None."""
    try:
        found = os.fstat(0)
        if stat.S_ISREG(found.st_mode):
            return "file", (found.st_dev, found.st_ino), os.lseek(0, 0, os.SEEK_CUR)
        return (
            ("once", None, 0) if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) or os.isatty(0) else None
        )
    except OSError:
        return None


def restore_seeds(seeds: dict[str, Any]) -> None:
    version, state, gauss = seeds["python"]
    random.setstate((version, tuple(state), gauss))
    if seeds["numpy"] is not None:
        import numpy

        kind, keys, position, has_gauss, cached = seeds["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), position, has_gauss, cached))
