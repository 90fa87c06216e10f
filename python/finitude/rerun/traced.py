"""--level trace: a bad step is explained by what was recorded as it ran. Its tape, which a capsule and a fix that is
tried need, comes of a second run in place, where one is possible."""

from __future__ import annotations

from .. import _native
from ..base import compat
from ..capsules import capsule
from ..program import ranks
from ..report import incident
from . import call_again, rewind
from .way import BadStep, Outcome, Refused, Way, climb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.types import Alarm, Verdict

HOW = "every op was recorded as the step ran (--level trace)"
FOR_TAPE = call_again.WAY, rewind.WAY  # in place: that step, and no other, is recorded


def is_possible(level: str, where: str) -> bool:
    """Is there a trace of steps, from while they ran the first time? where the bad value is: of those that came up
    before the step, it shows nothing."""
    return (level == "trace" or _native.has_traced_first_step()) and where not in ("earlier", "start")


def attempt(step: BadStep) -> Outcome | Refused:
    """The way for a step that was traced. Where its tape is wanted too, it runs again for that."""
    session = step.session
    # What the script wrote into a weight since the last step is in the trace. A second process knows more.
    is_of_script = step.where == "earlier" and session.config.level == "trace" and not session.restart.is_possible()
    if not (is_of_script or is_possible(session.config.level, step.where)) or not _explain(step):
        return Refused()
    if step.is_dropped:
        return Outcome()
    return Outcome(runs_again=bool(session.part(session.traced.begin, step)))


def _explain(step):
    """The step was traced while it ran the first time. False: it was not, or the trace does not show it."""
    session, optimizer, alarm, sinks = step.session, step.optimizer, step.alarm, step.sinks
    is_first = _native.has_traced_first_step()
    if not _native.trace_on() or session.traced.is_used_up():
        return False
    if is_first:
        session.capsules.stop(optimizer, sinks=sinks)
    found = session.analysis.findings(optimizer, sinks, incident.MAX_OPS if not is_first else 0)
    if not is_first:
        session.report.note_trace(found.pop("ops", None))
        _native.trace_start()
    if step.where == "earlier" and not _shows_write(found):
        return False
    explained = incident.apply(alarm, found)
    if is_first and explained:
        session.second_run.note_recorded()
    elif is_first:
        capsule.drop()
    if explained:
        why = "nothing earlier leads back to it" if is_first else "--level trace"
        alarm["rerun_by"], alarm["rerun_text"] = WAY.name, f"every op was recorded as the step ran ({why})"
    # What a compiled kernel did inside is not in the trace: another way may run it eagerly and know better. Of a first
    # step there is none.
    return explained and (is_first or not compat.compiled_code_ran())


def _shows_write(found):
    """Of a weight that was bad before its step: an operator made it so, in this window."""
    return any(birth["phase"] == "state" and birth["op"] for birth in found["births"])


WAY = Way("trace", attempt)


class Traced:
    """An alarm that its trace has explained, while its step runs again for the tape."""

    def __init__(self, not_watched: Callable[[str], None]):
        """not_watched: takes what the report is to name as such."""
        self._not_watched = not_watched
        self._alarm: tuple[Alarm, Alarm] | None = None  # it, and a copy of what it was before that second run

        self._used_up_at = -1  # number of steps at the time

    def use_up(self) -> None:
        """The trace of the running step went into an answer (finitude.explain): what is left of it is not whole."""
        self._used_up_at = _native.counters()["steps"]

    def is_used_up(self) -> bool:
        return self._used_up_at == _native.counters()["steps"]

    def begin(self, step: BadStep) -> bool:
        """The alarm is explained by its trace. True: returning from the vetoed call runs its step again."""
        session, alarm = step.session, step.alarm
        self._alarm = None
        if session.config.level != "trace" or step.where != "window" or session.config.on_alarm == "raise":
            return False
        if session.second_run.is_recorded or not session.capsules.wanted():
            return False
        if ranks.several() or not session.second_runs.left.take_in_place():
            return False
        self._alarm = alarm, {**alarm}
        alarm["rerun_text"] = ""
        outcome = climb(FOR_TAPE, step)
        if outcome is not None and outcome.runs_again:
            return True
        self.ended(alarm, outcome is not None)
        return False

    def ended(self, alarm: Alarm, verdict: Verdict) -> Verdict:
        """verdict: of the second run. True: the alarm is explained, by that or by its trace."""
        known, self._alarm = self._alarm, None
        if known is None or known[0] is not alarm:
            return verdict
        before = known[1]
        if not verdict:
            why = alarm["rerun_text"] or "no way"
            self._not_watched(f"a capsule of step {alarm['step']} (--level trace): it was not run again ({why})")
            alarm["rerun"], alarm["rerun_by"] = before["rerun"], before["rerun_by"]
            alarm["rerun_text"], alarm["rerun_verified"] = before["rerun_text"], before["rerun_verified"]
            incident.take_over(alarm, before)
            return True
        if not alarm["births"]:
            incident.take_over(alarm, before)
        alarm["rerun_by"], alarm["rerun_text"] = WAY.name, f"{HOW}; for its capsule it was {alarm['rerun_text']}"
        return True
