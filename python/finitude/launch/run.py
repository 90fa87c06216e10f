"""`finitude run`: watch a program from its first line to its last, then report."""

from __future__ import annotations

import json
import os
import signal
import sys

from ..base import family, secrets
from ..base.say import say
from ..program import ranks
from ..rerun import launch_command
from . import script, watched, witness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Config


def _unwatched(settings, target, command, why):
    """Says why, and writes it as the report at once: no part of finitude is left that could do so at the end."""
    say(f"finitude: {why}; the program runs unwatched.\n")
    if not settings.report:
        return
    document = {
        "schema": 1,
        "outcome": "unwatched",
        "reason": why,
        "python": sys.version.split()[0],
        "command": [] if settings.redact else secrets.masked_words(command),
        "script": target,
        "watched": dict.fromkeys(
            ("optimizers", "steps", "backward_calls", "gradients_scanned", "scaler_skips", "handled_by_script"), 0
        ),
        "alarms": [],
        "advisories": [],
    }
    try:
        os.makedirs(os.path.dirname(os.path.abspath(settings.report)), exist_ok=True)
        with open(settings.report, "w", encoding="utf-8") as f:
            json.dump(document, f, indent=1)
            f.write("\n")
    except OSError as e:
        say(f"finitude: warning: cannot write {settings.report}: {e.strerror}\n")


def main(settings: Config, is_module: bool, target: str, arguments: Sequence[str], command: Sequence[str]) -> None:
    """Runs it. Ends by SystemExit (or by the program's own signal); never returns."""
    sys.argv = [target if not is_module else "-m", *arguments]
    if settings.seed:
        _seed(int(settings.seed))
    session = _watch(settings, is_module, target, command)
    if not is_module:
        code = script.check_script(target)
        if code is not None:
            if session is not None:
                session.report.fail(f"{target} cannot be run")
                session.ending.end()
            sys.exit(code)
    if is_module:
        sys.path.insert(0, os.getcwd())
    else:
        target = os.path.abspath(target)
        sys.path.insert(0, script.first_on_path(target))
    ended = script.run_program(target, is_module)
    if session is not None:
        program = _Program(session)
        try:
            program.end(ended)
        except Exception as e:
            session.failures.note(e)
            program.end_at_least()
    script.finish(ended)


def _seed(number):
    """Before the watch begins: a second run starts from the state that is noted there."""
    from ..program import seeding

    try:
        seeding.seed_all(number)
    except ImportError as e:
        say(f"finitude: --seed: {e}\n")


def _watch(settings, is_module, target, command):
    name = target if is_module else os.path.abspath(target)
    why = watched.why_not()
    if why is not None:
        _unwatched(settings, name, command, why)
        return None
    import torch  # noqa: F401  its libraries, which _native needs

    from .. import _native
    from ..rerun.target import Target
    from ..session import install, native_callbacks
    from ..session.session import Session
    from . import child, compared

    target_step = Target.from_environment() or compared.from_environment()
    start = launch_command.Start(command)
    if target_step is not None:
        target_step.prepare()
    session = Session(settings, name, command, target_step, start)
    if target_step is None:
        family.announce(os.environ, session.report.planned_directory(), settings)
    start.plain = [sys.executable, *(["-m"] if is_module else []), target, *sys.argv[1:]]
    native_callbacks.session = session
    install.install(child.wait_for_training)
    watched.begin_selftest(settings)
    if target_step is not None:
        target_step.arm()
    elif settings.level == "trace":
        _native.set_trace_level(True)
        _native.trace_start()
    _Program(session).on_signals()
    if target_step is None:
        watched.on_exit_without_unwinding(session.ending.end)
    return session


# Time limits of schedulers and shells, and a terminal that is gone. SIGUSR1 and SIGUSR2 stay free: frameworks take them
# for requeueing only where no handler is in place.
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)


class _Program:
    """The program that runs in this process, and how it ends."""

    def __init__(self, session):
        self._session = session

    def on_signals(self) -> None:
        """They end a program without unwinding, as at a time limit of a cluster; the report is written
        first, then it dies of the signal as it would have."""

        def handler(number, frame):
            self._session.ending.hurry()
            self._session.ending.end(f"{signal.Signals(number).name} ended the program")
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        if ranks.several():
            return  # one that waits for the others inside torch could not answer: see _Process in child.py
        try:
            for number in ENDS:
                if signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, handler)
        except ValueError:
            pass  # not the main thread

    def end(self, ended: script.Ended) -> None:
        from .. import _native
        from ..program import signals

        session = self._session
        owner = session.pid == os.getpid()
        if not owner:
            return  # a child the script forked, on its own way out
        session.part(signals.hold, signals.ENDED)
        session.part(self._last_alarms, ended)
        if session.target is None and not isinstance(ended.error, KeyboardInterrupt):
            session.part(self._explain_ranks)
        session.part(lambda: witness.of_children(session.report.planned_directory()))
        session.ending.note_by_itself(ended.error is None)
        session.ending.close()
        session.part(signals.let_go)
        _native.set_on(False)
        _native.let_go()

    def _last_alarms(self, ended):
        session = self._session
        if session.second_run.pending is not None and (lost := session.ending.second_run_lost()) is not None:
            ended.error, ended.code = lost, 1
        if ended.error is not None or ended.code not in (None, 0):
            session.ending.program_raised(ended.error or ended.exit)
        elif session.target is None:
            self._look_a_last_time(ended)

    def _look_a_last_time(self, ended: script.Ended) -> None:
        from ..errors import NonFiniteError

        try:
            self._session.hand.at_end()
            self._session.weights.at_end()
        except NonFiniteError as e:
            ended.error, ended.code = e.with_traceback(None), 1

    def _explain_ranks(self):
        """Ranks that this program started itself: all of it runs again, together, where an alarm of theirs is to be
        explained."""
        from ..base import pages
        from ..report import merge
        from ..rerun import restart_ranks

        session = self._session
        members = merge.members(session.report.planned_directory())
        start = session.start
        if members and restart_ranks.explain(
            members, start.plain, os.environ, session.config, session.report.seconds(), start.cwd
        ):
            pages.print_explained(session.report.document())

    def end_at_least(self) -> None:
        """The report, in the least form if need be: an internal failure is none of the program's."""
        from ..session import minimal

        session = self._session
        try:
            session.ending.end()
        except Exception as e:
            session.failures.note(e)
            minimal.write_report(session.report, session.config)
