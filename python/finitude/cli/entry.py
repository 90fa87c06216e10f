"""Where the commands begin: what only reads is left to a program in C++, before anything large is imported."""

from __future__ import annotations

import os
import signal
import sys

from ..base import programs
from . import without_python

EXIT_CANNOT = 4


def _become(program, name, words):
    """Returns only where that program cannot be started."""
    path = programs.path_of(program)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
    try:
        os.execv(path, [name, *words])
    except OSError as e:
        if sys.stderr is not None:
            sys.stderr.write(f"finitude: cannot start {path}: {e.strerror}\n")
    return EXIT_CANNOT


def main() -> int:
    """`finitude`"""
    words = sys.argv[1:]
    if without_python.is_answered(words):
        return _become(programs.OFFLINE, "finitude", without_python.as_asked(words))
    from . import main

    return main.main(words)


def replay() -> int:
    """`finitude-replay`"""
    return _become(programs.PLAYER, "finitude-replay", sys.argv[1:])
