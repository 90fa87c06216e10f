"""`finitude run torchrun ...`: starts a command, lets its signals and exit code through, and merges what was watched in
it."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

from ..base import family, pages, say, secrets, working_folder
from ..capsules import step_manifest
from ..report import merge
from ..rerun import restart_ranks
from . import witness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from ..base.types import Config, Document
    from ..report.merge import Member
    from .targets import Target

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL = 0x80  # si_code: a key on the terminal, which the whole foreground group was sent
EXIT_CANNOT = 4


def _start(command, environment, mask):
    with_us = restart_ranks.ends_with_us(signal.SIGKILL)  # whoever kills us means what we started

    def before_exec():
        with_us()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return subprocess.Popen(command, env=environment, preexec_fn=before_exec)


def wait(
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
    note: Callable[[int], object] = lambda pid: None,
) -> int:
    """Runs it to its end; what we are sent, it gets. Returns the exit code, negative for a signal, as Popen has it.
    directory: of the run. note: is given the number of the process."""
    looks = None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_FORWARDED, signal.SIGCHLD))
    try:
        process = _start(command, environment, mask)
        note(process.pid)
        looks = witness.Witness(directory)
        while process.poll() is None:
            info = signal.sigtimedwait((*_FORWARDED, signal.SIGCHLD), 1.0)
            if info is not None and info.si_signo != signal.SIGCHLD and info.si_code != _FROM_KERNEL:
                process.send_signal(info.si_signo)
        if process.returncode < 0:
            witness.note(directory, process.pid, -process.returncode)
        return process.returncode
    finally:
        if looks is not None:
            looks.end()
        while signal.sigtimedwait((*_FORWARDED, signal.SIGCHLD), 0) is not None:
            pass  # it was for the command, which is gone
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def leave(code: int) -> NoReturn:
    """Ends this process as the command ended."""
    say.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it left its own
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


class Run:
    """One supervised command."""

    def __init__(self, settings, target, command, given):
        """given: how many words of the command, after `finitude run`, are options of Finitude."""
        self.settings, self.target, self.command, self.given = settings, target, command, given
        self.began = time.monotonic()
        self.started = datetime.datetime.now(datetime.timezone.utc)
        self.argv = [target.name, *target.arguments]
        self.directory = family.run_path(settings, self._script(), self.started)
        self.environment = dict(os.environ)
        family.announce(self.environment, self.directory, settings)
        # Random for the program as it would be, yet known, for a second run.
        self.environment.setdefault("PYTHONHASHSEED", str(random.SystemRandom().randrange(1, 2**32)))

    def _script(self):
        """The script that the command line names, for the name of the run: else the command itself."""
        return next((a for a in self.target.arguments if a.endswith(".py")), self.target.name)

    def document(self, members: list[Member]) -> Document:
        """The report of all."""
        reason = self.target.obstacle or f"no Python process of {os.path.basename(self.target.name)} trained"
        own: Document = {
            "schema": 1,
            "outcome": "unwatched",
            "reason": reason,
            "python": sys.version.split()[0],
            "command": [] if self.settings.redact else secrets.masked_words(self.command),
            "script": "",
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.datetime.now(datetime.timezone.utc) - self.started).total_seconds(), 3),
            "watched": merge.nothing_watched(),
            "alarms": [],
            "advisories": [],
            "warnings": [],
        }
        return merge.merged(own, members)

    def report(self, code: int) -> None:
        """One report of all processes, and the closing line. A failure is reported and not raised: the program has
        ended, and its exit code is passed on."""
        try:
            self._report(code)
        except (OSError, ValueError) as e:
            say.say(
                f"finitude: warning: the reports of the processes, each in a folder of {self.directory}, could not be "
                f"merged: {e}\n"
            )

    def _report(self, code: int) -> None:
        members = merge.members(self.directory)
        document = self.document(members)
        text, places = self._write(members, document)
        nobody_waits = code in (-signal.SIGINT, -signal.SIGTERM) or not document["alarms"]
        if not nobody_waits:
            seconds = time.monotonic() - self.began
            is_explained = restart_ranks.explain(
                members, self.argv, self.environment, self.settings, seconds, again=self._traced()
            )
            document = self.document(members)
            if is_explained:
                pages.print_explained(document)
            text, places = self._write(members, document)
        self._say_steps(members)
        page = self._html(members, text)
        is_well = document["outcome"] == "clean" and not document["failures"]
        # In a trial of `replay --with` the verdict is reported.
        if not os.environ.get(family.INJECT) and not (self.settings.quiet and is_well):
            shown = [working_folder.relative(path) if path else "" for path in (places[0] if places else "", page)]
            say.say(merge.closing_line(document, *shown) + "\n")

    def _traced(self) -> str:
        """The user's own command line, launcher and all, with each step recorded as it runs."""
        if self.settings.level == "trace":
            return ""
        words = secrets.masked_words(self.command)[4:]  # after PYTHON -m finitude run
        at = self.given - (words[: self.given][-1:] == ["--"])  # of two the last counts
        return shlex.join(["finitude", "run", *words[:at], "--level", "trace", *words[at:]])

    def _say_steps(self, members: list[Member]) -> None:
        """One manifest of each bad step, and what may be done with the capsules of its ranks. A failure costs that
        alone."""
        try:
            paths = [] if os.environ.get(family.INJECT) else step_manifest.write(self.directory, members)
            for path in paths[-1:]:
                shown = working_folder.relative(path)
                say.say(f"finitude: {step_manifest.one_line(shown, step_manifest.read(path))}\n")
        except Exception as e:
            say.say(f"finitude: warning: the capsules of the ranks are not listed: {type(e).__name__}: {e}\n")

    def _write(self, members: list[Member], document: Document) -> tuple[str, list[str]]:
        text = pages.as_json(document)
        places = [os.path.join(self.directory, "report.json")] if members else []
        places += [self.settings.report] if self.settings.report else []
        return text, [p for p in places if pages.write(p, text.encode())]

    def _html(self, members: list[Member], text: str) -> str:
        """Writes the page; returns its path, "" where there is none. The page of one process is that of the run."""
        if not members:
            return ""
        page = os.path.join(self.directory, "report.html")
        if len(members) == 1 and os.path.isfile(os.path.join(members[0].directory, "report.html")):
            with contextlib.suppress(OSError):
                shutil.copyfile(os.path.join(members[0].directory, "report.html"), page)
                return page
        if not pages.write_html(page, text):
            return ""
        if not self.settings.redact:
            _add_timeline(self.directory, page)
        return page


def _add_timeline(run, page):
    from ..live import in_report

    try:
        in_report.add(run, page, is_ending=True)
    except Exception as e:  # it costs the timeline alone
        say.say(f"finitude: warning: {page} has no timeline: {type(e).__name__}\n")


def main(settings: Config, target: Target, command: Sequence[str], given: int = 0) -> None:
    """Ends by SystemExit, or by the command's own signal. given: how many words of the command, after `finitude run`,
    are options of Finitude."""
    run = Run(settings, target, command, given)
    if target.obstacle:
        say.say(f"finitude: {target.obstacle}; the program runs unwatched.\n")
    try:
        code = wait(run.argv, run.environment, run.directory)
    except OSError as e:
        say.say(f"finitude: cannot start {run.argv[0]}: {e.strerror}\n")
        sys.exit(EXIT_CANNOT)
    run.report(code)
    leave(code)
