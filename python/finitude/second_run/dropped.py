"""Where the bad value of a step was born that the script itself did not apply: told of the first such step of a run."""

import weakref

from .. import _native
from ..capsules import capsule
from ..findings import capsule_alarm, findings
from ..findings.report import INNER
from ..program import anomaly, ranks, sinks as sinks_of
from . import recall, restart, rewind, tape

BAD = 2    # GradMark::State: at least infinite
GRADIENTS = "gradients that were not finite after backward were zeroed, replaced or dropped by the script"
CHECKED = "a loss that was not finite was looked at by the script and never given to backward"
_caught = weakref.WeakKeyDictionary()   # session -> step and text of the last backward pass that anomaly mode ended
HOW = "; run it with --level trace to see where it was born"


def begin(session, optimizer, window):
    """A window is about to be applied in which an earlier loss or gradient was bad and was dropped. True: it runs again."""
    if session.explained_drop or session.config.on_alarm == "raise" or not session.report.advisories or session.report.alarms:
        return False  # after an alarm, steps that were left out lie in the way
    session.explained_drop, session.looked_at = True, 0
    alarm = session.alarm_of(type(optimizer).__name__, window["ordinal"], window["step"], "loss", "loss")
    alarm["advisory"] = session.report.advisories[-1]
    if rewind.try_trace(session, optimizer, alarm, []) or tape.explain(session, optimizer, alarm, [], lost=True) or \
            recall.explain(session, optimizer, alarm):
        end(session, alarm, True, optimizer)
        return False
    if not ranks.several() and not session.units.of_framework() and rewind.begin(session, optimizer, alarm, []):
        return True
    end(session, alarm, False)
    return False


def backward_raised(session, error):
    """An outermost backward pass ended so while torch's anomaly mode was on. Where the script catches that itself it goes on, which the next
    backward pass shows, or the program's end: a finite loss leaves no other trace."""
    told = anomaly.found(error)
    if told is None or session.target is not None or session.pending is not None or not all(_native.is_finite(r.detach()) for r in told[2]):
        return
    if (found := sinks_of.derivative(session, error)) is not None:
        _tell_caught(session)
        _caught[session] = found[1]["step"], found[1]["text"] + "; the script caught that"
        _native.wake_on_backward()


def _tell_caught(session):
    if caught := _caught.pop(session, None):
        tell(session, *caught)


def backward_begins(session):
    """Is it one of the second run? What the script has looked at and dropped by then is what a replay is to come to."""
    if session.pending is None:
        _tell_caught(session)
    if session.pending is None or "advisory" not in session.pending["alarm"]:
        return False
    _native.wake_on_backward()
    session.looked_at += sum(_native.tape_outcome("loss", "loss", loss) for loss in sinks_of.looked_at())
    return True


def backward_ended(session, optimizer):
    """It left gradients of the second run bad, which the script is about to drop: that is what a replay is to come to."""
    if session.pending is None or not _native.tape_on():
        return
    capsule.stop(session, optimizer)
    _native.tape_seal()
    session.looked_at += 1


def end(session, alarm, is_explained, optimizer=None):
    """What the second run showed goes into the advisory. The step is applied, as it would have been."""
    recorded, session.recorded = session.recorded and capsule.wanted(session), False
    advisory = alarm["advisory"]
    advisory["births"], found = alarm["births"], is_explained and alarm["births"]
    if found:
        advisory["cause"] = alarm["cause"]
        _keep(session, alarm, optimizer, recorded)
        advisory["text"] += f"; {alarm['rerun']}, by {alarm['rerun_by']}: {alarm['rerun_text']}"
        if alarm["capsule"]:
            advisory["capsule"] = alarm["capsule"]
            advisory["text"] += f"; capsule {alarm['capsule']}"
    else:
        advisory["text"] += HOW + (f" ({alarm['rerun_text']})" if alarm["rerun_text"] else "")
    capsule.drop()
    session.holds.release()


def _keep(session, alarm, optimizer, recorded):
    """Its capsule, where the tape in hand comes to a loss that is not finite, or a second process has written it."""
    losses = _native.window(optimizer)["losses"] if optimizer is not None else ()
    told = {key: value for key, value in alarm.items() if key not in INNER}
    told.update(text=alarm["advisory"]["text"], action="handled by the script")
    if recorded and (session.looked_at or any(loss["bad"] or loss["answered"] for loss in losses)):
        alarm["capsule"] = capsule.write(session, {**told, "optimizer_ordinal": alarm["optimizer_ordinal"]})
    if alarm["capsule"]:
        capsule_alarm.complete({**told, "capsule": alarm["capsule"]}, session.config.redact)


def tell_checked(session, losses):
    """Losses that the script looked at before backward, and dropped."""
    for loss in losses:
        tell(session, loss["step"], CHECKED)


def at_end(session, told):
    """The program ended with a bad step that it did not apply, as where it left its loop for that reason.

    told: what is known of losses has been told already, as of a program without an optimizer.
    """
    if not session.report.alarms:   # else it is what ended the program
        _tell_caught(session)
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
    session.explained_drop, session.looked_at = True, 0
    optimizer, alarm, sinks = found
    alarm["advisory"] = session.report.advisories[-1]
    done = rewind.try_trace(session, optimizer, alarm, sinks) or tape.explain(session, optimizer, alarm, sinks, lost=True) or \
        restart.run(session, alarm, findings.fingerprint(optimizer))
    end(session, alarm, done, optimizer)
