"""--level tape: the operators of every step are recorded as it runs; a bad step is explained by issuing them again, without the
program's code. What is read of a step is held, or copied before it is overwritten, until the next one begins."""

from . import _native, begun, capsule, compat, findings

LIMIT_MB = 2048       # of what a step reads, where no capsule may be written
HOW = "its operators were recorded as it ran (--level tape) and issued again, without the program's code"


def begin(session):
    """The program has an optimizer: from here on windows are recorded."""
    if session.taped or session.config.level != "tape" or session.target is not None or session.config.on_alarm == "raise":
        return
    session.taped = True
    _native.set_tape_level((session.config.capsule_max or LIMIT_MB) << 20)
    _native.tape_window_begins()


def explain(session, optimizer, alarm, sinks, lost=False):
    """Plays the tape of the window in hand. True: it did what the step did, and the alarm now tells why. False: the next way
    has to tell, and the alarm says why not this one. lost: there is nothing to tell but where the value was born."""
    if not session.taped:
        return False
    why = _native.tape_level_lacks(optimizer) or ("compiled code ran, whose kernels are no operators" if compat.compiled_code_ran() else "")
    if not why:
        why = _play(session, optimizer, alarm, sinks, lost)
    _native.tape_level_rests()        # until the next window begins
    if why:
        _native.tape_clear()
        begun.forget()
        findings.passed_over(alarm, f"tape: {why}")
    return not why


def _play(session, optimizer, alarm, sinks, lost):
    """Why the tape does not tell; "": it does."""
    begun.here(_native.tape_generators())
    capsule.stop(session, optimizer, sinks=sinks if lost else (), raised=lost)
    found = findings.analyse(session, optimizer, sinks)
    told = found.pop("tape")
    if told["why_not"]:
        return told["why_not"]
    order_dependent = told["verdict"] == "order-dependent"
    if not (order_dependent and not told["bad_again"]):
        births = found.get("births")
        if not births and (lost or session.allowed_tensors == []):
            return "it does not show where the value was born"
        # What was there as the tape began, or was made by what is not on it, may have been computed in this step all the same.
        if births and births[0]["phase"] == "memory" and not births[0]["op"]:
            if told["refused"]:
                return f"{', '.join(told['refused'][:3])} could not be recorded"
            if _native.counters()["optimizers"] > 1:
                return "the value was there when it began"
        findings.apply(alarm, found)
    alarm["rerun_by"], alarm["rerun"], alarm["rerun_verified"] = "tape", told["verdict"], told["verified"]
    outcome = "loss and gradients came out with the same bits" if told["verified"] else \
        "it failed again, with other bits" if told["bad_again"] else "the step came out finite"
    alarm["rerun_text"] = f"{HOW}; {outcome}"
    session.recorded = True
    return ""


def end(session):
    """Says what was asked for and not recorded."""
    if session.config.level != "tape" or session.target is not None or session.config.on_alarm == "raise":
        return
    if session.taped and _native.tape_level_lost():
        session.not_watched("operators of steps on a device (--level tape): watched as with gate")
    elif not session.taped and _native.counters()["backward_calls"]:
        session.not_watched("operators of steps without an optimizer (--level tape): watched as with gate")
