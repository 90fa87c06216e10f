"""`finitude run --resume "CMD with {checkpoint}"`: a run that an alarm stopped is followed by that command, which goes
on from the newest checkpoint that was good. This process only starts runs, one after the other: each is a `finitude
run` of its own, with its own folder. Torch-free."""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import sys

from ..base import config, family, plain_json, secrets, skip_list
from ..base.say import say
from ..program import ranks
from ..report import capsule_alarm, named_samples, run_folder
from . import supervise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    RowsOfRun = Callable[[str], list[skip_list.Skipped]]

OPTIONS = ("--resume", "--resume-times", "--resume-skip-rows")
CHECKPOINT, SAMPLES, ROWS = "{checkpoint}", "{samples}", "{rows}"
SKIP_LIST = "skip-rows.jsonl"
_PLACES = re.compile("|".join(map(re.escape, (CHECKPOINT, SAMPLES, ROWS))))
TIMES = 3


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
    """What the command line asks for. options: those of `run`, without those of this module. command: what the first
    run runs. skips_rows: the rows of bad steps are skipped by the runs that follow."""

    def __init__(
        self,
        template: str,
        times: str | None,
        options: Sequence[str],
        command: Sequence[str],
        skips_rows: bool = False,
    ):
        """Raises config.UsageError."""
        self.options, self.command, self.skips_rows = list(options), list(command), skips_rows
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

    def skip_list(self, before: list[skip_list.Skipped], of_run: RowsOfRun) -> tuple[list[skip_list.Skipped], str]:
        """(what is skipped from here on, the file that says so). before: what was skipped until then."""
        path = os.path.join(os.path.abspath(self.folder), SKIP_LIST)
        try:
            lists = skip_list.joined([*before, *of_run(self.folder)])
        except ValueError as e:
            say(f"finitude: --resume: no more rows are skipped: {e}\n")
            lists = before
        try:
            skip_list.write(path, lists)
        except OSError as e:
            say(f"finitude: --resume: cannot write {path}: {e.strerror or e}\n")
            return before, os.devnull
        return lists, path

    def checkpoint(self) -> str:
        """The newest good one that is still there, or ""."""
        places = [self._report.get("checkpoints"), *reversed(self._report.get("alarms") or [])]
        for one in places:
            good = one.get("last_good") if isinstance(one, dict) else None
            path = good.get("checkpoint") if isinstance(good, dict) else None
            if isinstance(path, str) and os.path.exists(path):
                return path
        return ""


def main(runs: str, wanted: Wanted, redact: bool, of_run: RowsOfRun, skipped: list[skip_list.Skipped]) -> None:
    """Ends by SystemExit, or by the command's own signal. runs: where the runs have their folders. of_run: the rows to
    skip of the run in a folder; raises ValueError. skipped: those that the first run skips already."""
    command, left, options = wanted.command, wanted.times, wanted.options
    path = ""  # a run that stops before it has written one continues from where it began
    before = ""  # folder of the run that ended last
    started: list[int] = []
    note = started.append
    while True:
        environment = dict(os.environ)
        if before:
            environment[family.RESUMED] = before  # the policy continues from what it has counted there
        code = supervise.wait(_run(options, command), environment, runs, note)
        ended = _Ended(runs, started[-1])
        before = os.path.abspath(ended.folder) if ended.folder else ""
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
        samples = ",".join(map(str, named_samples.of(alarm)))
        rows = ""
        if wanted.skips_rows or any(ROWS in word for word in wanted.template):
            skipped, rows = ended.skip_list(skipped, of_run)
        if wanted.skips_rows:
            options = [*wanted.options, "--skip-rows", rows]
        filled = {SAMPLES: samples, CHECKPOINT: path, ROWS: rows}
        command = [_PLACES.sub(lambda found: filled[found[0]], word) for word in wanted.template]
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
        more = {"checkpoint": path, "pid": pid}
        event = {
            "schema": 1,
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z",
            "step": alarm.get("step"),
            "rank": ranks.world()[0],
            "optimizer": "",
            "kind": "resume",
            "text": "" if redact else shown,
            **(capsule_alarm.redacted(more) if redact else more),
        }
        try:
            with open(os.path.join(folder, run_folder.EVENTS), "ab", buffering=0) as f:
                f.write(json.dumps(plain_json.safe(event)).encode() + b"\n")
        except OSError as e:
            say(f"finitude: warning: cannot write {run_folder.EVENTS}: {e.strerror or e}\n")

    return note
