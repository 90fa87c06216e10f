"""--level tape: the operators of every step are recorded as it runs; a bad step is explained by issuing them again,
without the program's code. What is read of a step is held, or copied before it is overwritten, until the next one
begins.

--tape-every N: one healthy step in N is recorded, as a template. Its operators are tried first on a bad step, on that
step's own parameters, buffers, batch and random numbers; they represent it only where its loss and gradients come out,
bit for bit.

--verify every=N: one healthy step in N is recorded, and played before it is applied (session/verified.py)."""

from __future__ import annotations

from .. import _native
from ..base import compat
from ..capsules import capsule
from ..program import step_start_state
from ..report import incident
from .way import BadStep, Outcome, Refused, Way, note_rerun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.types import Config

LIMIT_MB = 2048  # of what a step reads, where no capsule may be written


def _wanted(config):
    """Of each step (0), of one in so many, or none at all (None)."""
    if config.level == "trace":
        return None
    if _verifies(config):
        return int(config.verify.partition("=")[2])
    if config.on_alarm == "raise":
        return None
    return 0 if config.level == "tape" else config.tape_every or None


def _verifies(config):
    return bool(config.verify) and config.level == "gate" and not config.tape_every


def _option(config):
    if _verifies(config):
        return f"--verify {config.verify}"
    return "--level tape" if config.level == "tape" else f"--tape-every {config.tape_every}"


class TapeLevel:
    """The recording that the options ask for, from the first optimizer to the end of the program."""

    def __init__(self, config: Config, explains: bool, not_watched: Callable[[str], None]):
        """explains: this process explains one step of another, and records no other. not_watched: takes what the report
        is to name as such."""
        self._config, self._explains, self._not_watched = config, explains, not_watched
        self.is_on = False  # the operators of each step are recorded

    def begin(self) -> None:
        """The program has an optimizer: from here on windows are recorded."""
        every = _wanted(self._config)
        if self.is_on or every is None or self._explains:
            return
        self.is_on = True
        _native.set_tape_level((self._config.capsule_max or LIMIT_MB) << 20, every, _verifies(self._config))
        _native.tape_window_begins()

    def end(self) -> None:
        """Says what was asked for and not recorded."""
        if _wanted(self._config) is None or self._explains:
            return
        option = _option(self._config)
        if self.is_on and _native.tape_level_lost():
            self._not_watched(f"operators of steps on a device ({option}): watched as with gate")
        elif not self.is_on and _native.counters()["backward_calls"]:
            self._not_watched(f"operators of steps without an optimizer ({option}): watched as with gate")


def attempt(step: BadStep) -> Outcome | Refused:
    """Plays the tape of the current window, or the template of its optimizer. Where that did what the step did, the
    alarm now says why."""
    session, optimizer = step.session, step.optimizer
    if step.where not in ("window", "dropped") or step.vote is not None or not session.tape_level.is_on:
        return Refused()
    why = _native.tape_level_lacks(optimizer)
    if why and session.config.level != "tape":
        _native.tape_level_rests()
        return Refused() if step.is_dropped else _explain_by_template(step)
    if not why and compat.compiled_code_ran():
        why = "compiled code ran, whose kernels are no operators"
    if not why:
        why = _play(step)
    _native.tape_level_rests()  # until the next window begins
    return _give_up(WAY.refuses(why)) if why else Outcome()


def _give_up(refused):
    _native.tape_clear()
    step_start_state.forget()
    return refused


def _explain_by_template(bad):
    session, optimizer = bad.session, bad.optimizer
    step = _native.template_step(optimizer)
    if step is None:  # nothing that could be said of it
        return Refused()
    why = (
        "compiled code ran, whose kernels are no operators"
        if compat.compiled_code_ran()
        else _native.template_bind(optimizer)
    )
    if not why:
        step_start_state.here(_native.window_generators(), is_past=True)
        session.step_start.remember(optimizer)
        capsule.describe(optimizer)
        capsule.name_modules()
        why = _conclude(
            bad,
            session.analysis.findings(optimizer, bad.sinks),
            f"the operators of step {step}, recorded as it ran ({_option(session.config)}), were "
            "issued again on what this "
            f"step began with, without the program's code",
        )
    return _give_up(Refused(f"{WAY.name} of step {step}: {why}")) if why else Outcome()


def _play(step):
    """Why the tape does not explain the step; "": it does."""
    session, optimizer = step.session, step.optimizer
    step_start_state.here(_native.tape_generators(), is_past=True)
    session.capsules.stop(optimizer, sinks=step.sinks if step.is_dropped else (), raised=step.is_dropped)
    return _conclude(
        step,
        session.analysis.findings(optimizer, step.sinks),
        f"its operators were recorded as it ran ({_option(session.config)}) and issued again, "
        "without the program's code",
    )


def _conclude(step, found, how):
    session, alarm = step.session, step.alarm
    played = found.pop("tape")
    if played["why_not"]:
        return played["why_not"]
    order_dependent = played["verdict"] == "order-dependent"
    if not (order_dependent and not played["bad_again"]):
        births = found.get("births")
        if not births and (step.is_dropped or not session.allowed.tensors):
            return "it does not show where the value was born"
        # What was there as the tape began, or was made by what is not on it, may have been computed in this step all
        # the same.
        if births and births[0]["phase"] == "memory" and not births[0]["op"]:
            if played["refused"]:
                return f"{', '.join(played['refused'][:3])} could not be recorded"
            if _native.counters()["optimizers"] > 1:
                return "the value was there when it began"
        incident.apply(alarm, found)
    what = (
        "the value"
        if step.is_dropped and step.sinks
        else incident.compared(incident.fingerprint(step.optimizer), step.is_dropped)
    )
    outcome = (
        f"{what} came out with the same bits"
        if played["verified"]
        else "it failed again, with other bits"
        if played["bad_again"]
        else "the step came out finite"
    )
    note_rerun(alarm, WAY.name, played["verdict"], played["verified"], f"{how}; {outcome}")
    session.second_run.note_recorded()
    return ""


WAY = Way("tape", attempt)
