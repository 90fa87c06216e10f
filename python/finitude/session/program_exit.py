"""The program ends by something of its own: an exception, an exit, a signal. What is an alarm then, and what is said of
one that was still being explained."""

from __future__ import annotations

import contextlib
import os

from .. import _native
from ..alarms import arithmetic_errors, manual_updates
from ..base.say import say
from ..effects import fork_dry_run
from ..errors import NonFiniteError
from ..program import grad_scaler
from ..report import console, incident, kept_step, unwatched
from ..report.document import without_inner
from ..rerun import ladder
from ..rerun.way import BadStep, climb
from . import minimal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.types import Alarm, Parts


class Ending:
    """How the program ends, and what is said then of an alarm that was being explained."""

    def __init__(self, session: Parts):
        self._session = session
        self.has_begun = False  # nothing is stopped any more by what is reported from here on
        self.is_hurried = False  # somebody ended the program, and waits for that
        self.has_time = False  # it came to its end by itself: nobody waits for the process to be gone
        self.done = self.written = False  # the end has begun; the reports are written
        self._calls: list[Callable[[], object]] = []

    def begin(self) -> None:
        self.has_begun = True

    def hurry(self, is_hurried: bool = True) -> None:
        self.is_hurried = is_hurried

    def note_by_itself(self, by_itself: bool) -> None:
        self.has_time = by_itself

    def call_before(self, call: Callable[[], object]) -> None:
        """Before the reports are written, once."""
        self._calls.append(call)

    def _call_all(self) -> None:
        for call in self._calls:
            self._session.part(call)

    def program_raised(self, error: BaseException | None) -> None:
        """The script ended by an exception: a bad loss that it found itself is an alarm with its own exit code kept."""
        _end_rehearsal()
        session = self._session
        if session.target is not None:
            session.target.program_ended(error)
            return
        self.hurry(isinstance(error, KeyboardInterrupt))
        if self.unexplained(f"{type(error).__name__} ended the program"):
            return
        if isinstance(error, (NonFiniteError, KeyboardInterrupt)) or not _native.is_on():
            return
        words = f"the script itself raised {type(error).__name__}{grad_scaler.complaint(error)}"
        if (alarm := self.of_exception(error, words, "the script's own exception")) is not None:
            self._add_and_print(alarm)
        else:
            session.part(arithmetic_errors.advise, session.report, error)

    def of_exception(self, error: BaseException | None, words: str, action: str) -> Alarm | None:
        """The alarm of a bad value that the exception is about, explained as far as it can be; None where nothing says
        that it is about one. words, action: what is said of it."""
        session = self._session
        explained = session.call_again.explained(error)
        found = explained or session.bad_windows.behind(error) or session.refused.found(error)
        if found is None:
            return None
        optimizer, alarm, sinks = found
        unproven = alarm.pop("unproven", "")
        session.second_run.note_without_tensor(not explained and not sinks and optimizer is not None)
        alarm["text"], alarm["action"] = f"{alarm['text']}; {words}", action
        self.begin_alarm(alarm)
        again = session.config.on_alarm != "raise"
        if optimizer is None and alarm["sink"]["kind"] == "gradient":
            alarm["optimizer"], again = manual_updates.NAME, False
            incident.note_failed_way(
                alarm, "a backward pass that ended by an exception is not run again where there is no optimizer"
            )
        if explained and session.units.recorded_at == _native.windows_closed():
            session.second_run.note_recorded()
        if not explained and again:
            climb(ladder.AFTERWARDS, BadStep(session, optimizer, alarm, sinks, is_dropped=True))
        if unproven and not alarm["births"]:
            session.refused.unproven(alarm, error, unproven)
            return None
        if optimizer is not None:
            session.weights.applied_before(optimizer, alarm)
            session.weights.left_behind(optimizer, alarm)
        if session.second_run.take_recorded() and session.capsules.wanted():
            alarm["capsule"] = session.capsules.write(alarm)
        _native.consume_losses(optimizer)
        return alarm

    def second_run_lost(self) -> NonFiniteError | None:
        """The program ended inside a second run: the next way explains the alarm, which is what ends the program. None:
        it was of a step that the script itself had skipped, and ends nothing."""
        _end_rehearsal()
        session = self._session
        pending = session.rewound.abandon()
        alarm = pending["alarm"]
        if "advisory" in alarm:
            session.dropping.end(alarm, False)
            return None
        session.restart.run(alarm, pending["expected"])
        alarm["action"] = "stopped"
        self._add_and_print(alarm)
        session.ballot.note_reported(pending["vote"])
        return NonFiniteError(console.message(session.report, alarm), report=alarm)

    def begin_alarm(self, alarm: Alarm) -> None:
        """What explains the alarm begins: should the program end meanwhile, it is reported as it is."""
        self.unexplained("the program continued")
        self._session.report.begin(alarm)

    def unexplained(self, why: str, action: str = "stopped") -> bool:
        """An alarm whose second run is cut short by `why`, so no time is left for another way: reported as it is.
        action: where nothing is known of what was done. True: there was one."""
        session = self._session
        session.hand.lost()
        alarm = session.report.unexplained
        if session.second_run.pending is not None:
            alarm = session.rewound.abandon()["alarm"]
        if alarm is None:
            return False
        incident.note_failed_way(alarm, f"{why} while the step was being explained")
        if "advisory" in alarm:
            session.dropping.end(alarm, False)
            session.report.forget_unexplained()
            return False
        alarm.setdefault("action", action)
        self._add_and_print(alarm)
        return True

    def forked(self) -> None:
        """In a process that the program forked nothing is written."""
        self.done = self.written = True

    def end(self, why: str = "the program ended") -> None:
        """Writes the reports and the closing line. Once."""
        _end_rehearsal()
        session = self._session
        if self.done:
            if not self.written:  # ended by a signal while it was at it
                self.write()
            return
        self.done = True
        session.part(self.unexplained, why)
        session.part(session.holds.release)
        session.part(self._call_all)
        if session.target is not None:
            session.target.program_ended(None)
            return
        session.part(self._finish)
        session.part(session.tape_level.end)
        session.part(session.chosen_step.end)
        session.part(session.verified.end, session.config)
        session.part(session.rank_checks.at_end)
        session.part(session.dumps.at_end)
        session.part(lambda: session.drops.at_end(session.hand.finish()))
        session.part(session.weights.count_swallowed)
        session.part(session.never_written.at_end)
        session.part(unwatched.at_end, session.report, session.allowed.parts)
        if session.config.level == "trace" and session.report.trace_ops is None:
            session.report.note_trace(session.part(kept_step.ops, session.report))
        self.write()

    def write(self) -> None:
        session = self._session
        self.written = True
        session.part(session.store.end)
        session.part(session.capsules.finish, self.is_hurried)
        if session.member and not session.part(session.report.worth_writing, otherwise=True):
            return
        written = session.part(session.report.write)
        if written is None:
            written = minimal.write_report(session.report, session.config)
        elif not self.is_hurried:
            session.part(self._add_timeline, written)
        if not session.member and not (session.config.quiet and session.report.is_clean()):
            with contextlib.suppress(KeyboardInterrupt):  # the program has ended: its exit code is kept
                say(session.part(session.report.closing_line, written, otherwise=minimal.CLOSING) + "\n")

    def _add_timeline(self, written: list[str]) -> None:
        """Into the page of the run, after the store is closed. With --redact it stays without values."""
        page = os.path.join(self._session.report.directory or "", "report.html")
        if page in written and not self._session.config.redact:
            from ..live import in_report

            in_report.add(os.path.dirname(page), page, is_ending=True)

    def close(self) -> None:
        """The reports are written, whatever fails."""
        session = self._session
        session.part(self.end)
        if not self.written and session.target is None:
            session.part(self.write)

    def _finish(self) -> None:
        """The program has ended, and nothing is being explained any more."""
        self._session.deferred.finish()
        if self.has_time and not self.is_hurried:
            self._session.rest.explain()

    def _add_and_print(self, alarm: Alarm) -> None:
        without_inner(alarm)
        self._session.report.add_alarm(alarm)
        self._session.console.print_alarm(alarm)


def _end_rehearsal():
    """A copy of the process that only tries a second run has come to an end of the program: it ends here."""
    if fork_dry_run.is_under_way():
        fork_dry_run.end(fork_dry_run.ASTRAY)
