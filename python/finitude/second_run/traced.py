"""--level trace: a bad step is explained by what was recorded as it ran. Its tape, which a capsule and a fix that is
tried need, comes of a second run in place, where one is possible."""

from __future__ import annotations

from ..capsules import capsule
from ..program import ranks
from . import recall, rewind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Alarm, Optimizer, Session, Sink, Verdict

RUN = ("rerun", "rerun_by", "rerun_text", "rerun_verified")
FOUND = ("births", "cause", "fix", "path")
HOW = "every op was recorded as the step ran (--level trace)"


def begin(session: Session, optimizer: Optimizer, alarm: Alarm, sinks: Sequence[Sink], where: str) -> bool:
    """The alarm is explained by its trace. True: returning from the vetoed call runs the step again, for its tape."""
    session.by_trace = None
    if session.config.level != "trace" or where != "window" or session.config.on_alarm == "raise":
        return False
    if session.recorded or not capsule.wanted(session) or ranks.several() or not session.second_runs.take_in_place():
        return False
    session.by_trace = alarm, dict(alarm)
    alarm["rerun_text"] = ""
    if recall.explain(session, optimizer, alarm):
        return not ended(session, alarm, True)
    if not session.units.of_framework() and rewind.begin(session, optimizer, alarm, sinks):
        return True
    return not ended(session, alarm, False)


def ended(session: Session, alarm: Alarm, verdict: Verdict) -> Verdict:
    """verdict: of the second run. True: the alarm is explained, by that or by its trace."""
    (traced, before), session.by_trace = session.by_trace or (None, None), None
    if traced is not alarm:
        return verdict
    if not verdict:
        why = alarm["rerun_text"] or "no way"
        session.not_watched(f"a capsule of step {alarm['step']} (--level trace): it was not run again ({why})")
        alarm.update({key: before[key] for key in (*RUN, *FOUND)})  # type: ignore[index]  # with `traced` it is there
        return True
    if not alarm["births"]:
        alarm.update({key: before[key] for key in FOUND})  # type: ignore[index]  # with `traced` it is there
    alarm["rerun_by"], alarm["rerun_text"] = "trace", f"{HOW}; for its capsule it was {alarm['rerun_text']}"
    return True
