"""Where the bad value of a step was born that the script itself did not apply: told of the first such step of a run."""

from .. import _native
from ..findings import findings
from ..program import ranks, sinks as sinks_of
from . import recall, restart, rewind, tape

BAD = 2    # GradMark::State: at least infinite
GRADIENTS = "gradients that were not finite after backward were zeroed, replaced or dropped by the script"
CHECKED = "a loss that was not finite was looked at by the script and never given to backward"
HOW = "; run it with --level trace to see where it was born"


def begin(session, optimizer, window):
    """A window is about to be applied in which an earlier loss or gradient was bad and was dropped. True: it runs again."""
    if session.explained_drop or session.config.on_alarm == "raise" or not session.report.advisories or session.report.alarms:
        return False  # after an alarm, steps that were left out lie in the way
    session.explained_drop = True
    alarm = session.alarm_of(type(optimizer).__name__, window["ordinal"], window["step"], "loss", "loss")
    alarm["advisory"] = session.report.advisories[-1]
    if rewind.try_trace(session, optimizer, alarm, []) or tape.explain(session, optimizer, alarm, [], lost=True) or \
            recall.explain(session, optimizer, alarm):
        end(session, alarm, True)
        return False
    if not ranks.several() and not session.units.of_framework() and rewind.begin(session, optimizer, alarm, []):
        return True
    end(session, alarm, False)
    return False


def end(session, alarm, is_explained):
    """What the second run showed goes into the advisory. The step is applied, as it would have been."""
    session.recorded = False
    _native.tape_clear()
    advisory = alarm["advisory"]
    advisory["births"], found = alarm["births"], is_explained and alarm["births"]
    if found:
        advisory["cause"] = alarm["cause"]
        advisory["text"] += f"; {alarm['rerun']}, by {alarm['rerun_by']}: {alarm['rerun_text']}"
    else:
        advisory["text"] += HOW + (f" ({alarm['rerun_text']})" if alarm["rerun_text"] else "")
    session.holds.release()


def tell_checked(session, losses):
    """Losses that the script looked at before backward, and dropped."""
    for loss in losses:
        tell(session, loss["step"], CHECKED)


def at_end(session, told):
    """The program ended with a bad step that it did not apply, as where it left its loop for that reason.

    told: what is known of losses has been told already, as of a program without an optimizer.
    """
    for optimizer in sinks_of.watched_optimizers() if not session.report.alarms else ():
        if any(m >= BAD for m in _native.window(optimizer)["marks"]):
            tell(session, _native.window(optimizer)["step"], "gradients that were not finite after backward were never applied")
            told = True
            break
    watched = _native.counters()["optimizers"]
    for _ in _native.pending_bad_losses() if not told else ():
        tell(session, _native.counters()["steps"], "a loss that was not finite was " + ("never applied" if watched else "not seen to be applied"))
        told = True
    if not told and not session.report.alarms:
        tell_checked(session, _native.dropped_checks() or _native.waiting_checks())
    _explain(session)


def tell(session, step, text, times=1):
    for _ in range(times):
        _native.add_handled(1)
        session.advise("handled-by-script", step, text)


def _explain(session):
    if session.explained_drop or session.config.on_alarm == "raise" or session.report.alarms or ranks.several() or \
            not session.has_time:
        return
    found = sinks_of.pending_window(session) or sinks_of.lost_window(session) or sinks_of.checked_window(session)
    if found is None or not session.report.advisories:
        return
    session.explained_drop = True
    optimizer, alarm, sinks = found
    alarm["advisory"] = session.report.advisories[-1]
    done = rewind.try_trace(session, optimizer, alarm, sinks) or tape.explain(session, optimizer, alarm, sinks, lost=True) or \
        restart.run(session, alarm, findings.fingerprint(optimizer))
    end(session, alarm, done)
