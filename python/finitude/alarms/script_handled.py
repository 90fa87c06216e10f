"""Where the bad value of a step was born that the script itself did not apply. Reported of the first such step of a
run."""

from __future__ import annotations

from .. import _native
from ..base.plain_json import number
from ..capsules import capsule
from ..errors import NonFiniteError
from ..program import anomaly, frames_at_raise, ranks, sinks as sinks_of
from ..report import capsule_alarm, incident
from ..report.document import without_inner
from ..rerun import ladder
from ..rerun.way import BadStep, climb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Alarm, Optimizer, Parts, Window

BAD = 2  # GradMark::State: at least infinite
GRADIENTS = "gradients that were not finite after backward were zeroed, replaced or dropped by the script"
NORM = "the norm of finite gradients overflowed for clipping, and the script dropped the step"
CHECKED = "a loss that was not finite was looked at by the script and never given to backward"
HOW = "; run it with --level trace to see where it was born"


class Dropping:
    """What is known of the steps that the script has dropped."""

    def __init__(self, session: Parts):
        self._session = session
        self.is_explained = False  # one of them is
        self.looked_at = 0  # its bad losses on the current tape
        self.long_row: Any = None  # the first row of losses as long as --max-skips
        # Step and text of the last backward pass that raised for a bad value, where the script may have caught that.
        self._caught: tuple[int, str] | None = None

    def begin(self, optimizer: Optimizer, window: Window) -> bool:
        """A window is about to be applied in which an earlier loss or gradient was bad and was dropped. True: it runs
        again."""
        session = self._session
        if (
            self.is_explained
            or session.config.on_alarm == "raise"
            or not session.report.advisories
            or session.report.alarms
        ):
            return False  # after an alarm, skipped steps lie in the way
        self.is_explained, self.looked_at = True, 0
        alarm = session.alarms.of_class(type(optimizer).__name__, window["ordinal"], window["step"], "loss", "loss")
        alarm["advisory"] = session.report.advisories[-1]
        outcome = climb(ladder.IN_PLACE, BadStep(session, optimizer, alarm, [], is_dropped=True))
        if outcome is not None and outcome.runs_again:
            return True
        self.end(alarm, outcome is not None, optimizer)
        return False

    def backward_raised(self, error: BaseException) -> None:
        """An outermost backward pass ended so. Where the script catches it, it continues, which the next backward
        pass shows, or the program's end: a finite loss leaves no other trace."""
        session = self._session
        if session.target is not None or session.second_run.pending is not None or not isinstance(error, Exception):
            return
        raised = anomaly.found(error)
        if raised is None:
            if (
                isinstance(error, NonFiniteError)
                or _native.pending_bad_losses()
                or not frames_at_raise.is_about_values(error)
            ):
                return
            text = f"backward raised {type(error).__name__} for a value that is not finite"
            self._caught = _native.counters()["steps"], text + "; the script caught that"
            _native.wake_on_backward()
            return
        if not all(_native.is_finite(r.detach()) for r in raised[2]):
            return
        if (found := session.bad_windows.derivative(error)) is not None:
            self._note_caught()
            self._caught = found[1]["step"], found[1]["text"] + "; the script caught that"
            _native.wake_on_backward()

    def _note_caught(self):
        caught, self._caught = self._caught, None
        if caught is not None:
            self.note(*caught)

    def backward_begins(self) -> bool:
        """Is it one of the second run? What the script has looked at and dropped by then is what a replay is to come
        to."""
        session = self._session
        if session.second_run.pending is None:
            self._note_caught()
        if session.second_run.pending is None or "advisory" not in session.second_run.pending["alarm"]:
            return False
        _native.wake_on_backward()
        self.looked_at += sum(_native.tape_outcome("loss", "loss", loss) for loss in sinks_of.looked_at())
        return True

    def backward_ended(self, optimizer: Optimizer) -> None:
        """It left gradients of the second run bad, which the script is about to drop: that is what a replay is to come
        to."""
        if self._session.second_run.pending is None or not _native.tape_on():
            return
        self._session.capsules.stop(optimizer)
        _native.tape_seal()
        self.looked_at += 1

    def end(self, alarm: Alarm, is_explained: bool, optimizer: Optimizer | None = None) -> None:
        """What the second run showed goes into the advisory. The step is applied, as it would have been."""
        session = self._session
        recorded = session.second_run.take_recorded() and session.capsules.wanted()
        advisory = alarm["advisory"]
        advisory["births"], found = alarm["births"], is_explained and alarm["births"]
        if found:
            advisory["cause"] = alarm["cause"]
            if self.long_row and self.long_row["advisory"] is advisory:
                self.long_row["again"] = {
                    key: alarm[key] for key in ("rerun", "rerun_by", "rerun_verified", "rerun_text")
                }
            self._keep(alarm, optimizer, recorded)
            advisory["text"] += f"; {alarm['rerun']}, by {alarm['rerun_by']}: {alarm['rerun_text']}"
            if alarm["capsule"]:
                advisory["capsule"] = alarm["capsule"]
                advisory["text"] += f"; capsule {alarm['capsule']}"
        else:
            advisory["text"] += HOW + (f" ({alarm['rerun_text']})" if alarm["rerun_text"] else "")
        capsule.drop()
        session.holds.release()

    def _keep(self, alarm: Alarm, optimizer: Optimizer | None, recorded: bool) -> None:
        """Its capsule, where the current tape comes to a loss that is not finite, or a second process has written
        it."""
        losses = _native.window(optimizer)["losses"] if optimizer is not None else ()
        handled: Alarm = {**alarm, "text": alarm["advisory"]["text"], "action": "handled by the script"}
        without_inner(handled)
        if recorded and (self.looked_at or any(loss["bad"] or loss["answered"] for loss in losses)):
            whole: Alarm = {**handled, "optimizer_ordinal": alarm["optimizer_ordinal"]}
            alarm["capsule"] = self._session.capsules.write(whole)
        if alarm["capsule"]:
            capsule_alarm.complete({**handled, "capsule": alarm["capsule"]}, self._session.config.redact)

    def note_checked(self, losses: list[dict[str, Any]]) -> int:
        """Losses that the script looked at before backward, and dropped, one after another. How many."""
        more = _native.more_checks() if losses else 0
        if any(alarm["weights"] == "damaged" for alarm in self._session.report.alarms):
            return len(losses) + more  # whatever is computed of such weights is bad: no step that the script handled
        for loss in losses:
            self.note(loss["step"], GRADIENTS if loss["asked"] else CHECKED)
        _native.add_handled(more)
        count = len(losses) + more
        if losses and count >= max(1, self._session.config.max_skips) and self.long_row is None:
            last = self._session.report.advisories[-1]  # past the most that a report takes it is one of another step
            is_of_row = last["kind"] == "handled-by-script" and last["step"] == losses[-1]["step"]
            advisory = last if is_of_row else {}
            self.long_row = {"loss": losses[0], "count": count, "advisory": advisory, "again": {}}
        return count

    def at_end(self, is_reported: bool) -> Alarm | None:
        """The program ended with a bad step that it did not apply, as where it left its loop for that reason.

        is_reported: what is known of losses has been reported already, as of a program without an optimizer.
        """
        session = self._session
        if not session.report.alarms:  # else it is what ended the program
            self._note_caught()
        continues = session.config.on_alarm == "warn"
        left = next((d for d in _native.open_drops() if d[6]), None) if continues or not session.report.alarms else None
        if left is not None:
            self.note(left[2], "gradients that were not finite after backward were never applied")
            is_reported = True
        watched = _native.counters()["optimizers"]
        for _ in _native.pending_bad_losses() if not is_reported else ():
            self.note(
                _native.counters()["steps"],
                "a loss that was not finite was " + ("never applied" if watched else "not seen to be applied"),
            )
            is_reported = True
        if not is_reported and (continues or not session.report.alarms):
            waiting = _native.waiting_checks()
            count = self.note_checked(_native.dropped_checks() + waiting)
            if waiting and count >= max(1, session.config.max_skips) and not session.report.alarms:
                return {**self.row_alarm(count, session.ending.has_time), "action": "the program went on to its end"}
        self._explain()
        return self._of_long_row() if self.long_row is not None and not session.report.alarms else None

    def _of_long_row(self):
        """The alarm of a program that has dropped so many steps, and then continued by itself. What is known of one of
        them is in its advisory."""
        loss, advisory = self.long_row["loss"], self.long_row["advisory"]
        alarm = self._session.alarms.of_class(loss["optimizer"], loss["ordinal"], loss["step"], "loss", "loss")
        alarm["loss"] = number(float(loss["value"]))
        alarm["text"] = (
            f"the script dropped {self.long_row['count']} steps in a row by itself: the loss was not finite; "
            f"then it went on from step {loss['step']}"
        )
        alarm["action"] = "the program went on by itself"
        alarm["births"], alarm["capsule"] = advisory.get("births", []), advisory.get("capsule")
        alarm["cause"] = advisory.get("cause") or alarm["cause"]
        alarm.update(self.long_row["again"])
        without_inner(alarm)
        return alarm

    def row_alarm(self, count: int, may_run: bool = True) -> Alarm:
        """The alarm of a program that has looked at so many bad losses, or has asked for so many bad gradients, one
        after another, and has applied none of them. There is one that waits to be settled."""
        session = self._session
        optimizer, alarm, sinks = session.bad_windows.checked()  # type: ignore[misc]  # that is there
        what = "loss was not finite" if alarm["sink"]["kind"] == "loss" else "gradients were not finite"
        alarm["text"] = row_text(count, what, alarm["step"])
        if session.config.on_alarm == "raise" or ranks.several() or not may_run:
            incident.note_failed_way(alarm, "it was not run again")
        else:
            climb(ladder.AFTERWARDS, BadStep(session, optimizer, alarm, sinks, is_dropped=True))
        without_inner(alarm)
        return alarm

    def note(self, step: int, text: str, times: int = 1) -> None:
        for _ in range(times):
            _native.add_handled(1)
            self._session.report.advise("handled-by-script", step, text)

    def _explain(self) -> None:
        session = self._session
        if (
            self.is_explained
            or session.config.on_alarm == "raise"
            or session.report.alarms
            or ranks.several()
            or not session.ending.has_time
        ):
            return
        found = session.bad_windows.pending() or session.bad_windows.lost() or session.bad_windows.checked()
        if found is None or not session.report.advisories:
            return
        self.is_explained, self.looked_at = True, 0
        optimizer, alarm, sinks = found
        alarm["advisory"] = session.report.advisories[-1]
        outcome = climb(ladder.AFTERWARDS, BadStep(session, optimizer, alarm, sinks, is_dropped=True))
        self.end(alarm, outcome is not None, optimizer)


def row_text(count: int, what: str, step: int) -> str:
    """Of so many steps one after another that the script did not apply. what: why."""
    return (
        f"the script dropped {count} step{'s' * (count != 1)} in a row by itself: the {what}; "
        f"nothing has been learned since step {step}"
    )
