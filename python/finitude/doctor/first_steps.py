"""Runs the first steps of a script in a process of its own, which is ended where we have seen enough."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time

from ..base import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

GRACE = 5.0  # seconds for the script to let go after its time is up
MAX_BYTES = 256 << 20
TAIL = 4000  # characters of a failed script's last words


class CannotRun(Exception):
    """The first steps cannot be looked at here; says why."""


def run(
    target: str,
    is_module: bool,
    arguments: Sequence[str],
    steps: int,
    seconds: float,
    show_output: bool = False,
    compared: bool = False,
    draws: bool = False,
) -> tuple[dict[str, Any], str]:
    """(facts, last words of the script). Raises CannotRun where nothing was seen. compared: with another run, so that
    each operation counts. draws: facts["random"] has who draws random numbers."""
    if not hasattr(os, "fork"):
        raise CannotRun("a process of its own for the script takes os.fork, which this system does not have")
    say.flush()
    with tempfile.TemporaryDirectory(prefix="finitude-doctor-") as folder:
        facts, words = os.path.join(folder, "facts.json"), os.path.join(folder, "words")
        child = os.fork()
        if child == 0:
            _live(target, is_module, arguments, steps, seconds, facts, None if show_output else words, compared, draws)
        in_time = _wait(child, seconds + GRACE)
        return _read(facts, in_time), _tail(words)


def _wait(child, seconds):
    """Waits for it, then ends it and all that it started. False: it had to be ended."""
    until, in_time = time.monotonic() + seconds, False
    try:
        while time.monotonic() < until and not in_time:
            in_time = os.waitpid(child, os.WNOHANG)[0] != 0
            if not in_time:
                select.select([], [], [], 0.01)
    finally:  # also on Ctrl-C
        try:
            os.killpg(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        if not in_time:
            os.waitpid(child, 0)
    return in_time


def _read(path, in_time):
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise CannotRun("more was seen than can be read")
        with open(path, encoding="utf-8") as f:
            facts = json.load(f)
    except (OSError, ValueError):
        raise CannotRun(
            "the script took all of its time before its first step"
            if not in_time
            else "the process of the script ended before anything was seen"
        ) from None
    if not facts["ended"]:
        facts["ended"] = "time" if not in_time else "killed"
    if "cannot" in facts:
        raise CannotRun(facts["cannot"])
    return facts


def _tail(path):
    try:
        with open(path, "rb") as f:
            f.seek(max(0, os.path.getsize(path) - TAIL))
            return f.read().decode("utf-8", "replace")
    except OSError:
        return ""


# -- in the process of the script -----------------------------------------------------------------


def _live(target, is_module, arguments, steps, seconds, facts, words, compared, draws):
    """Never returns: what the script would do at its end is not done."""
    code = 1
    try:
        os.setpgid(0, 0)
        _streams(words)

        def write(document):
            with open(facts + ".new", "w", encoding="utf-8") as f:
                json.dump(document, f)
            os.replace(facts + ".new", facts)

        _look(target, is_module, arguments, steps, seconds, write, compared, draws)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        try:
            say.flush()
        finally:
            os._exit(code)


def _streams(words):
    """The script's output goes to a file, or, where it is to be seen, to stderr: stdout is for the findings."""
    target = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if words else os.dup(2)
    os.dup2(target, 1)
    if words:
        os.dup2(target, 2)
    os.close(target)


def _look(target, is_module, arguments, steps, seconds, write, compared, draws):
    try:
        import torch  # noqa: F401

        from ..base import _places
        from ..errors import Reached
        from ..launch import script
        from . import hooks, look as looks

        look = looks.Look(steps, write, compared, draws)
        hooks.install(look)
    except Exception as e:
        write(
            {
                "ended": "cannot",
                "cannot": f"torch cannot be looked into here: {type(e).__name__}: {' '.join(str(e).split())[:300]}",
            }
        )
        return

    def late(signum, frame):
        if look.facts["ended"] == "":
            look.over("time")
            raise Reached

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    sys.argv = ["-m" if is_module else target, *arguments]
    sys.path.insert(0, os.getcwd() if is_module else script.first_on_path(target))
    with look:
        ended = script.run_program(target if is_module else os.path.abspath(target), is_module)
    if look.facts["ended"]:
        return  # also where the script made an exception of its own out of that of Finitude
    if ended.error is not None:
        import traceback

        trace = traceback.extract_tb(script._trim(ended.error.__traceback__))
        place = next(((f.filename, f.lineno) for f in reversed(trace) if not _places.is_library(f.filename)), ("", 0))
        look.facts["error_at"] = place
        look.over("raised", f"{type(ended.error).__name__}: {ended.error}")
        traceback.print_exception(ended.error)
    else:
        look.over("finished", "" if ended.code in (0, None) else f"exit code {ended.code}")
