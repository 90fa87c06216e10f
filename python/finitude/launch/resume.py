"""`finitude run --resume "CMD with {checkpoint}"`: a run that an alarm stopped is followed by that command, which goes
on from the newest checkpoint that was good. This process only starts runs, one after the other: each is a `finitude
run` of its own, with its own folder. Torch-free."""

from __future__ import annotations

import os
import shlex
import sys

from ..base import config, plain_json, secrets
from ..base.say import say
from ..report import events
from . import supervise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

OPTIONS = ("--resume", "--resume-times")
CHECKPOINT, SAMPLES = "{checkpoint}", "{samples}"
TIMES = 3
MOST_SAMPLES = 1000  # on a command line


def without(options: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Words of `run` before its command, less those of this module. flags: options that take no value."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        name, is_whole, _ = word.partition("=")
        value = [] if is_whole or name in (*flags, "-q", "--") else [next(words, "")]
        if name not in OPTIONS:
            kept += [word, *value]
    return kept


class Wanted:
    """What the command line asks for. options: those of `run`, without these two. command: what the first run runs."""

    def __init__(self, template: str, times: str | None, options: Sequence[str], command: Sequence[str]):
        """Raises config.UsageError."""
        self.options, self.command = list(options), list(command)
        try:
            self.template = shlex.split(template)
        except ValueError as e:
            raise config.UsageError(f"--resume cannot be split into words: {e}") from None
        if not any(CHECKPOINT in word for word in self.template):
            raise config.UsageError(f"--resume takes a command with {CHECKPOINT} in it, not {template!r}")
        try:
            self.times = TIMES if times is None else int(times)
        except ValueError:
            raise config.UsageError(f"--resume-times takes a whole number, not {times!r}") from None
        if not 0 <= self.times <= config.MOST:
            raise config.UsageError(f"--resume-times is at least 0 and at most {config.MOST}")


class _Ended:
    """A run that is over. folder: its own, "" where it made none."""

    def __init__(self, runs: str, pid: int):
        names = os.listdir(runs) if os.path.isdir(runs) else []
        found = sorted(name for name in names if name.endswith(f"-{pid}"))
        self.folder = os.path.join(runs, found[-1]) if found else ""
        self._report: dict[str, Any] = {}
        try:
            document = plain_json.read(os.path.join(self.folder, "report.json")) if self.folder else {}
            self._report = document if isinstance(document, dict) else {}
        except (OSError, ValueError):
            pass

    def alarm(self) -> dict[str, Any] | None:
        """The one that stopped it."""
        alarms = self._report.get("alarms")
        last = alarms[-1] if isinstance(alarms, list) and alarms else None
        if not isinstance(last, dict):
            return None
        stops = last.get("policy") in ("stop", "raise") and not last.get("harmless")
        return last if stops or last.get("action") == "stopped" else None

    def checkpoint(self) -> str:
        """The newest good one that is still there, or ""."""
        places = [self._report.get("checkpoints"), *reversed(self._report.get("alarms") or [])]
        for one in places:
            good = one.get("last_good") if isinstance(one, dict) else None
            path = good.get("checkpoint") if isinstance(good, dict) else None
            if isinstance(path, str) and os.path.exists(path):
                return path
        return ""


def samples_of(alarm: dict[str, Any]) -> list[int]:
    """The samples of the data set that the alarm names."""
    cause = alarm.get("cause")
    experiments = cause.get("experiments") if isinstance(cause, dict) else None
    found: dict[int, None] = {}
    for one in (*(alarm.get("births") or ()), *(experiments or ())):
        for sample in (one.get("samples") if isinstance(one, dict) else None) or ():
            if type(sample) is int and len(found) < MOST_SAMPLES:
                found[sample] = None
    return sorted(found)


def main(runs: str, wanted: Wanted, redact: bool) -> None:
    """Ends by SystemExit, or by the command's own signal. runs: where the runs have their folders."""
    command, left = wanted.command, wanted.times
    path = ""  # a run that stops before it has written one continues from where it began
    started: list[int] = []
    note = started.append
    while True:
        code = supervise.wait(_run(wanted.options, command), dict(os.environ), runs, note)
        ended = _Ended(runs, started[-1])
        alarm = ended.alarm() if code > 0 else None
        if alarm is None:
            break
        path = ended.checkpoint() or (path if os.path.exists(path) else "")
        if not path:
            say("finitude: --resume: the run wrote no checkpoint that is good; nothing is started again\n")
            break
        if not left:
            say(f"finitude: --resume: started again {wanted.times} times (--resume-times); no more\n")
            break
        left -= 1
        samples = ",".join(map(str, samples_of(alarm)))
        command = [word.replace(SAMPLES, samples).replace(CHECKPOINT, path) for word in wanted.template]
        shown = shlex.join(secrets.masked_words(command))
        say(f"finitude: --resume, {wanted.times - left} of {wanted.times}: {shown}\n")
        note = _noted(ended.folder, alarm, path, shown, redact, started)
    supervise.leave(code)


def _run(options, command):
    return [sys.executable, "-m", "finitude", "run", *options, *command]


def _noted(folder, alarm, path, shown, redact, started):
    """Notes in the run that was stopped which one follows it, once its process is there."""

    def note(pid):
        started.append(pid)
        of_run = events.Events(lambda: folder or None, lambda text: say(f"finitude: warning: {text}\n"), redact)
        of_run.add("resume", "" if redact else shown, alarm.get("step"), "", checkpoint=path, pid=pid)
        of_run.close()

    return note
