"""--level tape: the operators of every step are recorded as it runs; a bad step is explained by issuing them again,
without the program's code. What is read of a step is held, or copied before it is overwritten, until the next one
begins.

--tape-every N: one healthy step in N is recorded, as a template. Its operators are tried first on a bad step, on that
step's own parameters, buffers, batch and random numbers; they stand for it only where its loss and gradients come out,
bit for bit."""

from __future__ import annotations

from .. import _native
from ..base import compat
from ..capsules import capsule
from ..findings import findings
from ..program import begun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Alarm, Optimizer, Session, Sink

LIMIT_MB = 2048  # of what a step reads, where no capsule may be written


def _wanted(config):
    """Of each step (0), of one in so many, or none at all (None)."""
    if config.on_alarm == "raise" or config.level == "trace":
        return None
    return 0 if config.level == "tape" else config.tape_every or None


def _option(config):
    return "--level tape" if config.level == "tape" else f"--tape-every {config.tape_every}"


def begin(session: Session) -> None:
    """The program has an optimizer: from here on windows are recorded."""
    every = _wanted(session.config)
    if session.taped or every is None or session.target is not None:
        return
    session.taped = True
    _native.set_tape_level((session.config.capsule_max or LIMIT_MB) << 20, every)
    _native.tape_window_begins()


def explain(
    session: Session, optimizer: Optimizer | None, alarm: Alarm, sinks: Sequence[Sink], lost: bool = False
) -> bool:
    """Plays the tape of the window in hand, or the template of its optimizer. True: it did what the step did, and the
    alarm now tells why. False: the next way has to tell, and the alarm says why not this one. lost: there is nothing to
    tell but where the value was born."""
    if not session.taped:
        return False
    why = _native.tape_level_lacks(optimizer)
    if why and session.config.level != "tape":
        _native.tape_level_rests()
        return not lost and _explain_by_template(session, optimizer, alarm, sinks)
    if not why and compat.compiled_code_ran():
        why = "compiled code ran, whose kernels are no operators"
    if not why:
        why = _play(session, optimizer, alarm, sinks, lost)
    _native.tape_level_rests()  # until the next window begins
    if why:
        _give_up(alarm, f"tape: {why}")
    return not why


def _give_up(alarm, why):
    _native.tape_clear()
    begun.forget()
    findings.passed_over(alarm, why)


def _explain_by_template(session, optimizer, alarm, sinks):
    step = _native.template_step(optimizer)
    if step is None:  # nothing that could be said of it
        return False
    why = (
        "compiled code ran, whose kernels are no operators"
        if compat.compiled_code_ran()
        else _native.template_bind(optimizer)
    )
    if not why:
        begun.here(_native.window_generators(), is_past=True)
        begun.remember(session, optimizer)
        capsule.describe(optimizer)
        capsule.name_modules()
        why = _conclude(
            session,
            alarm,
            findings.analyse(session, optimizer, sinks),
            False,
            f"the operators of step {step}, recorded as it ran ({_option(session.config)}), were "
            "issued again on what this "
            f"step began with, without the program's code",
        )
    if why:
        _give_up(alarm, f"tape of step {step}: {why}")
    return not why


def _play(session, optimizer, alarm, sinks, lost):
    """Why the tape does not tell; "": it does."""
    begun.here(_native.tape_generators(), is_past=True)
    capsule.stop(session, optimizer, sinks=sinks if lost else (), raised=lost)
    return _conclude(
        session,
        alarm,
        findings.analyse(session, optimizer, sinks),
        lost,
        f"its operators were recorded as it ran ({_option(session.config)}) and issued again, "
        "without the program's code",
    )


def _conclude(session, alarm, found, lost, how):
    told = found.pop("tape")
    if told["why_not"]:
        return told["why_not"]
    order_dependent = told["verdict"] == "order-dependent"
    if not (order_dependent and not told["bad_again"]):
        births = found.get("births")
        if not births and (lost or session.allowed_tensors == []):
            return "it does not show where the value was born"
        # What was there as the tape began, or was made by what is not on it, may have been computed in this step all
        # the same.
        if births and births[0]["phase"] == "memory" and not births[0]["op"]:
            if told["refused"]:
                return f"{', '.join(told['refused'][:3])} could not be recorded"
            if _native.counters()["optimizers"] > 1:
                return "the value was there when it began"
        findings.apply(alarm, found)
    alarm["rerun_by"], alarm["rerun"], alarm["rerun_verified"] = "tape", told["verdict"], told["verified"]
    outcome = (
        "loss and gradients came out with the same bits"
        if told["verified"]
        else "it failed again, with other bits"
        if told["bad_again"]
        else "the step came out finite"
    )
    alarm["rerun_text"] = f"{how}; {outcome}"
    session.recorded = True
    return ""


def end(session: Session) -> None:
    """Says what was asked for and not recorded."""
    if _wanted(session.config) is None or session.target is not None:
        return
    option = _option(session.config)
    if session.taped and _native.tape_level_lost():
        session.not_watched(f"operators of steps on a device ({option}): watched as with gate")
    elif not session.taped and _native.counters()["backward_calls"]:
        session.not_watched(f"operators of steps without an optimizer ({option}): watched as with gate")
