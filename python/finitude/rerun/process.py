"""The second process of a restart: started, reported, waited for, ended.

It says before how long it will take, shows on a terminal how far it is, and Ctrl-C ends it alone: the alarm is reported
without it.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

from .. import _native
from ..base.own_child import OwnChild, OwnProcess
from ..base.say import is_terminal, say
from . import overlay_fs, restart_ranks
from .overlay_fs import Overlay, scratch_outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..base.types import Alarm
    from .launch_command import Start

NOTICE_S = 3.0  # seconds: what is shorter is not worth a line
INTERRUPTED = "the second process was ended by Ctrl-C"
_NEWEST = re.compile(r"\{newest:([^}]*)\}")


class NoCheckpoint(Exception):
    """No file matches what --restart-args asks for."""


def _age(path):
    """Sorts the newest file last. Of files of one tick of the clock the one with the larger numbers in its name is
    newer."""
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError:  # removed meanwhile, as old checkpoints are
        changed = 0
    return changed, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def more_arguments(text: str, cwd: str) -> tuple[list[str], str]:
    """(words to add to the program's arguments, the checkpoint among them or ""). {newest:PATTERN} is the newest file
    that matches. Raises NoCheckpoint."""
    chosen = ""

    def newest(match):
        nonlocal chosen
        found = glob.glob(os.path.join(cwd, match.group(1)), recursive=True)
        if not found:
            raise NoCheckpoint(f"no file matches {match.group(1)}")
        chosen = max(found, key=_age)
        if not os.path.isabs(match.group(1)):
            chosen = os.path.relpath(chosen, cwd)
        return chosen

    return [_NEWEST.sub(newest, word) for word in shlex.split(text)], chosen


def _seconds(count):
    return f"{count:.0f} s" if count < 90 else f"{count / 60:.0f} min"


class _Notice:
    """What a person sees meanwhile."""

    def __init__(self, step, took_first, ring, resumed):
        self.step, self.took_first, self.ring, self.resumed = step, took_first, ring, resumed
        self.said = self.shown = False
        self.terminal = is_terminal()

    def update(self, waited: float) -> None:
        if not self.said and (waited > NOTICE_S or self.took_first > NOTICE_S):
            self.said = True
            how = f"from {self.resumed}, which takes at most" if self.resumed else "which takes about"
            say(
                f"finitude: running the program again up to step {self.step} in a second process, {how} "
                f"{_seconds(max(self.took_first, waited))} (Ctrl-C skips this) ...\n"
            )
        if self.terminal and waited > NOTICE_S:
            self.shown = True
            say(f"\rfinitude: second process, {_seconds(waited)}{self._progress()}\x1b[K")

    def _progress(self):
        try:
            steps = _native.read_ring(self.ring)["steps"]
        except (ValueError, OSError):
            return ""
        if not steps:
            return ""
        return f", step {steps[-1]['step'] + 1}" + ("" if self.resumed else f" of {self.step}")

    def end(self) -> None:
        if self.shown:
            say("\r\x1b[K")


def run(
    start: Start,
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
    alarm: Alarm,
    resumed: str = "",
    ours: Sequence[str] = (),
    stays: str | None = None,
    took: float | None = None,
) -> tuple[int | None, str, str]:
    """Runs the command to its end. (exit code or None, why it did not come to the step or "", what has to be said of
    its files). Neither code nor reason: the program has waited for it. directory, stays: what the child leaves there
    stays. ours: Finitude's directories below the program's. took: how many seconds the program took up to the step,
    where it has gone on since."""
    lasted = time.monotonic() - start.monotonic
    took_first = lasted if took is None else took
    limit = max(120.0, 6 * took_first)
    scratch = scratch_outside(*overlay_fs.directories_of(start.cwd, command[1:]))
    process, overlay, stdin, child = None, None, start.input_again(), None
    notice = _Notice(alarm["step"], took_first, os.path.join(directory, "steps.ring"), resumed)
    try:
        try:
            overlay = Overlay(
                scratch,
                start.cwd,
                command[1:],
                time.time() - lasted,
                [*ours, directory, scratch],
                fresh=not resumed,
                stay=[stays, directory],
            )
        except OSError:
            pass  # its files are written a second time then, which is said
        with_us = restart_ranks.ends_with_us(signal.SIGKILL)

        def before_exec():
            if overlay is not None:
                overlay.before_exec()
            with_us()

        try:
            if overlay is not None:
                environment = {**environment, overlay_fs.ENVIRONMENT: scratch}
            child = OwnChild()
            process = OwnProcess(
                command,
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=start.cwd,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except Exception as e:  # an audit hook of the program may raise anything
            return None, f"the second process could not be started: {getattr(e, 'strerror', None) or e}", ""
        child.started(process.pid)
        if overlay is not None:
            overlay.began()
        began = updated = time.monotonic()
        notice.update(0)
        while process.poll() is None:
            waited = time.monotonic() - began
            if waited > limit:
                return None, f"the second process did not reach step {alarm['step']} within {limit:.0f} s", ""
            if time.monotonic() - updated > 0.5:
                updated = time.monotonic()
                notice.update(waited)
            time.sleep(0.02)
        _kill(process)  # it ends without a word to the processes that the program has started in it
        code = None if process.is_taken else process.returncode
        return code, "", overlay.ended() if overlay is not None else overlay_fs.written_below([start.cwd])
    except KeyboardInterrupt:
        return None, INTERRUPTED, ""
    finally:
        notice.end()
        if stdin != subprocess.DEVNULL:
            os.close(stdin)
        if process is not None:
            _kill(process)
        if child is not None:
            child.ended()
        if overlay is not None:
            overlay.clear()
        shutil.rmtree(scratch, ignore_errors=True)


def _kill(process):
    """It and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
