"""Parameters or optimizer state that are not finite: what the optimizer made of a step, or what came up later."""

from __future__ import annotations

import time

from .. import _native
from ..program import optimizer_members, ranks, sinks as sinks_of
from ..program.tensor_stats import count_text, listed
from ..report import impossible_state, incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..base.types import Alarm, Context, Optimizer, Sink, Tensor, Verdict, Window
    from ..rerun.restart import Restart

UNAPPLIED = _native.action_text("stop", at_start=True)
WRITER = ", written by an earlier step or by the script since"
ITEMS = ("aten::item", "aten::_local_scalar_dense")  # hand a number to the host
LAST_LOOK = 5  # seconds at the end of a program, after which no further optimizer is looked at
LONG_RUN = 60  # seconds: a run that took longer is not run again for an advisory


def _of_applied_step(alarm, step):
    """No checkpoint and no initial value is to blame for what a bad step of this run has left."""
    alarm["cause"]["text"] += f"; step {step} of this run was bad and was applied"
    text = f"mend what made step {step} bad, as its alarm says; --on-alarm skip does not apply such a step"
    alarm["fix"] = {"text": text, "verified": False, "file": "", "line": 0}


def _of_reported(alarm, step, name):
    """Nor where an alarm was about these weights."""
    alarm["cause"]["text"] += f"; that is what the alarm of step {step} is about"
    text = f"mend what the alarm of step {step} names; a step stays bad for as long as {name} is"
    alarm["fix"] = {"text": text, "verified": False, "file": "", "line": 0}


class NonfiniteWeights:
    """The alarms of parameters and optimizer state."""

    def __init__(
        self,
        context: Context,
        allowed: Sequence[Tensor],
        analysis: incident.Analysis,
        restart: Restart,
        act: Callable[..., Verdict],
    ):
        """allowed: tensors that may hold non-finite values. act: explains an alarm and carries the policy out
        (Decision.act)."""
        self._context, self._allowed, self._analysis, self._restart, self._act = (
            context,
            allowed,
            analysis,
            restart,
            act,
        )
        self._vanished = set()  # numbers of optimizers whose gradients became zero
        self._swallowed = {}  # number of an optimizer -> its advisory, what its text says of the overflow
        self._overflowed = set()  # names of optimizer state that an advisory reported

    def just_written(self, optimizer: Optimizer) -> Verdict:
        """Called right after a step that wrote something bad. May raise NonFiniteError."""
        context = self._context
        found = sinks_of.written_state(optimizer, self._allowed)
        window = _native.window(optimizer)
        if not found or window["ordinal"] in context.damage:
            return None  # allowed; or reported before it was applied, or when it first came up
        kind, name, tensor = found[0]
        step = window["step"] - 1
        if context.target is not None:
            if not sinks_of.only_overflowed(found) or context.target.looks_for_overflow():
                context.target.on_written(optimizer, found)
            return None
        if sinks_of.only_overflowed(found):
            if name not in self._overflowed:
                self._overflowed.add(name)
                self._advise_overflow(optimizer, name, step)
            return None
        alarm = context.alarms.of(optimizer, kind, name, step=step)
        alarm["text"] = f"the optimizer wrote {count_text(tensor)} into {name}; the gradients it was given are finite"
        alarm["cause"] = incident.cause(
            "optimizer-arithmetic", f"{type(optimizer).__name__}.step made {name} non-finite out of finite gradients"
        )
        undone = context.config.on_alarm != "warn" and _native.undo_step(optimizer)
        if undone:
            impossible_state.note(optimizer)
        else:
            alarm["weights"] = "damaged"
            self._context.damage.mark_reported(window["ordinal"], alarm, (name for _, name, _ in found))
        self._act(optimizer, alarm, found, where="written", undone=undone)
        return None

    def applied_before(self, optimizer: Optimizer, alarm: Alarm) -> None:
        """A step that began with weights which an applied one had ruined is bad for that, whatever a second run of it
        has met first."""
        if optimizer in impossible_state.seen:
            impossible_state.add_to_alarm(alarm, optimizer)
        if alarm.get("optimizer_ordinal") not in self._context.damage or alarm["sink"]["kind"] not in (
            "loss",
            "gradient",
        ):
            return
        if alarm["rerun"] == "not-run":
            return
        damage, ordinal = self._context.damage, alarm["optimizer_ordinal"]
        ruined_at = damage.applied_at(ordinal)
        if alarm["births"] and alarm["births"][0]["phase"] == "state":
            name = alarm["births"][0].get("name", "")
            if alarm["births"][0]["op"]:
                return
            if (reported := damage.reported_at(ordinal, name)) is not None:
                _of_reported(alarm, reported, name)
            elif ruined_at is not None:
                _of_applied_step(alarm, ruined_at)
            return
        if found := sinks_of.bad_state(optimizer, self._allowed):
            _, name, tensor = found[0]
            alarm["births"] = [{**incident.birth("state"), "name": name, "outputs": listed(name, tensor)}]
            alarm["cause"] = incident.cause(
                "corrupted-state",
                f"{name} held {count_text(tensor)} before the step began",
            )
            alarm["fix"], alarm["path"] = None, []
            if (reported := damage.reported_at(ordinal, name)) is not None:
                _of_reported(alarm, reported, name)
            elif ruined_at is None:
                alarm["cause"]["text"] += ", of an earlier step that was applied"
            else:
                _of_applied_step(alarm, ruined_at)

    def left_behind(self, optimizer: Optimizer, alarm: Alarm) -> None:
        """A step that an exception ended has written by then what it wrote, as one that searches along a line."""
        if sinks_of.bad_state(optimizer, self._allowed):
            alarm["weights"] = "damaged"

    def look_for_swallowed(self, optimizer: Optimizer, window: Window) -> None:
        """Every gradient has become exactly zero while the loss is not: has an overflow been swallowed on the way, as
        by the reciprocal root of a half-precision sum that is Inf? An advisory where a second look finds one, else
        nothing."""
        context = self._context
        if window["ordinal"] in self._vanished:
            return
        self._vanished.add(window["ordinal"])
        alarm = context.alarms.of(optimizer, "gradient", optimizer_members.names(optimizer)[0])
        if context.config.level == "trace":
            incident.apply(alarm, self._analysis.findings(optimizer, [], swallowed=True))
            _native.trace_start()
        elif context.report.seconds() < LONG_RUN and context.config.on_alarm != "raise":
            self._restart.run(alarm, incident.fingerprint(optimizer), "swallowed")
        if alarm["births"]:
            birth, step, before = alarm["births"][0], window["step"], len(context.report.advisories)
            why = f"{birth['op']} overflowed, and " + (
                "the script computed zeros from that number in Python"
                if birth["absorbed_by"]["op"] in ITEMS
                else f"{birth['absorbed_by']['op']} made zeros of it"
            )
            text = f"all gradients are zero in step {step}: {why}"
            context.report.advise("swallowed-overflow", step, text, alarm["cause"], alarm["births"])
            if len(context.report.advisories) > before:
                self._swallowed[window["ordinal"]] = context.report.advisories[-1], why

    def count_swallowed(self) -> None:
        """At the end, in which steps the gradients were zero. A ring that no longer holds the first does not know."""
        for ordinal, (advisory, why) in self._swallowed.items():
            first, steps = advisory["step"], _native.ring_steps(ordinal)
            zero = [step for step, loss, gradient, _ in steps if step >= first and gradient == 0 and loss != 0]
            if not zero or zero[0] != first:
                continue
            last, times = zero[-1], len(zero)
            advisory["last_step"], advisory["times"] = last, times
            if times > 1:
                often = "" if times == last - first + 1 else f"{times} of the "
                advisory["text"] = f"all gradients are zero in {often}steps {first} to {last}; in step {first} {why}"

    def _advise_overflow(self, optimizer, name, step, where="written"):
        """Inf in the state, as in a second moment beyond float32: the parameter no longer moves, and nothing is NaN."""
        context = self._context
        alarm = context.alarms.of(optimizer, "state", name, step=step)
        frame = next(optimizer_members.user_frames(), None)
        alarm["births"] = [incident.birth("optimizer", "", frame.f_code.co_filename, frame.f_lineno)] if frame else []
        alarm["cause"] = incident.cause("optimizer-arithmetic", f"{name} overflowed")
        is_first = len(self._overflowed) == 1
        if is_first and context.report.seconds() < LONG_RUN and context.config.on_alarm != "raise":
            self._restart.run(alarm, incident.fingerprint(optimizer), where)
        made = (
            "was set to Inf outside of its step"
            if alarm["cause"]["class"] == "corrupted-state"
            else "overflowed to Inf"
        )
        context.report.advise(
            "optimizer-state-overflow",
            alarm["step"],
            f"the optimizer's state {name} {made}; the parameter will no longer move",
            alarm["cause"],
            alarm["births"],
        )

    def at_end(self) -> None:
        """What the optimizers hold as a program ends by itself: its last steps were looked at in part only. May raise
        NonFiniteError."""
        context = self._context
        if context.target is not None or context.report.alarms or ranks.several() or not _native.is_on():
            return
        until = time.monotonic() + LAST_LOOK
        for optimizer in sinks_of.watched_optimizers():
            window = _native.window(optimizer)
            if (
                window["ordinal"] in context.damage
                or window["step"] == 0
                or window["on_device"]
                or time.monotonic() > until
            ):
                continue  # a device is not waited for
            found = [
                f for f in sinks_of.written_state(optimizer, self._allowed) if f[0] == "state" or f[2].requires_grad
            ]
            if not sinks_of.only_overflowed(found):
                if found:
                    self.found_late(optimizer, window, found, ended=True)
            elif found[0][1] not in self._overflowed:
                self._overflowed.add(found[0][1])
                self._advise_overflow(optimizer, found[0][1], window["step"], "overflowed")

    def found_late(self, optimizer: Optimizer, window: Window, found: list[Sink], ended: bool = False) -> Verdict:
        """A parameter or state is bad although the steps looked healthy: one of them wrote it, or the script did since.

        Only a part of what a healthy step writes is looked at right away; a second process finds which step it was.
        ended: the program did, else it is at a step that is not applied yet."""
        kind, name, tensor = found[0]
        alarm = self._context.alarms.of(optimizer, kind, name)
        alarm["weights"] = "damaged"
        if not ended:
            alarm["action"] = UNAPPLIED
        alarm["text"] = f"{name} holds {count_text(tensor)}{WRITER}"
        alarm["cause"] = incident.cause("unknown", f"what wrote {name} was not seen", "possible")
        self._context.damage.mark_reported(window["ordinal"], alarm, (name for _, name, _ in found))
        _native.consume_losses(optimizer)
        return self._act(optimizer, alarm, found, where="earlier")


def add_writer(alarm: Alarm, found_at: int, found_in: str) -> None:
    """Into such an alarm, found before step `found_at` was applied, what a second process saw of the write: found_in as
    restart.run returns it."""
    if alarm["step"] != found_at:
        alarm.pop("action", None)  # an earlier step did it, which was applied
    birth = alarm["births"][0] if alarm["births"] else None
    if birth is None:
        return
    is_of_script = birth["phase"] == "state" and birth["op"]
    into_sink = is_of_script and birth.get("name") == alarm["sink"]["name"]
    by_step = alarm["path"] or any(one["phase"] == "optimizer" for one in alarm["births"])
    if found_in == "written" and not into_sink and by_step:
        alarm["text"] = alarm["text"].replace(WRITER, f", written by step {alarm['step']} of {alarm['optimizer']}")
    elif is_of_script:
        alarm["text"] = alarm["text"].replace(WRITER, ", written by the script between two steps")
