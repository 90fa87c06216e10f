"""The second run by calling: the units of work of the bad step are called once more, traced, inside the vetoed call.

The loop around them, its callbacks, loggers and counters, does not move at all. A unit that is still running when its
own optimizer steps (manual optimization) is called inside itself, and left by an exception at that same step."""

from __future__ import annotations

import dataclasses
import sys

import torch

from .. import _native
from ..base import compat
from ..base.kinds import is_a
from ..base.robust import in_any_case
from ..effects.files import written_twice
from ..effects.object_snapshot import Ledger
from ..errors import Reached, raised_from_ours
from ..program import optimizer_members, ranks, sharding, sinks as sinks_of
from ..report import carried_state, incident
from .alarm_correlation import trace_continues
from .isolation import IsolatedRun
from .way import BadStep, Outcome, Refused, Way, note_rerun, serves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Alarm, BadWindow, Config, Findings, Holds, Optimizer, Sink, Tensor, Units, Vote
    from ..capsules.capsule import Capsules
    from ..program.grad_scaler import Scaling
    from ..program.rng_generators import Streams
    from ..program.sinks import BadWindows
    from .alarm_correlation import RecentAlarms
    from .under_way import SecondRun


def attempt(step: BadStep) -> Outcome | Refused:
    """The way for a bad step whose window is open, and for one that searched along a line and was undone: its first
    evaluation."""
    if step.where == "window":
        return step.session.call_again.explain(step.optimizer, step.alarm, vote=step.vote)
    if step.where == "search" and step.undone and step.loss is not None:
        return step.session.call_again.explain(step.optimizer, step.alarm, step.loss)
    return Refused()


WAY = Way("closure", attempt)


@dataclasses.dataclass(frozen=True)
class Needs:
    """What of a run it needs to call units again in place."""

    config: Config
    units: Units
    bad_windows: BadWindows
    second_run: SecondRun
    recent: RecentAlarms
    holds: Holds
    scaling: Scaling
    streams: Streams  # the program's own generators
    capsules: Capsules
    analysis: incident.Analysis


class CallAgain:
    """Calls units of work again, and keeps what that showed of one that raised."""

    def __init__(self, needs: Needs):
        self._needs = needs

    def explain(
        self,
        optimizer: Optimizer | None,
        alarm: Alarm,
        returned: Tensor | None = None,
        error: BaseException | None = None,
        vote: Vote | None = None,
    ) -> Outcome | Refused:
        """Calls the window's units again, traced. Where they did the same the alarm now says why.

        vote: of several ranks, which call theirs together or not at all. returned: a value to compare instead of losses
        and gradients: of an optimizer that searches along a line, the loss of its first evaluation; where the last unit
        raised `error`, as it is to do again, the bad value in its frames."""
        units = self._needs.units
        if vote is not None and not units.of_framework() or vote is None and ranks.several():
            return Refused()  # what it exchanged with the others it cannot do alone
        if not units.log or (returned is None or error is not None) and units.window != _native.windows_closed():
            if vote is not None:
                vote.cast("nothing is known that could be called again")
            has_stepped = units.log and units.running is not None
            return WAY.refuses("an optimizer has stepped in it before") if has_stepped else Refused()
        why, lost, twice = units.why_not(), [], []
        if vote is not None:
            if refused := vote.cast(f"{WAY.name}: {why}" if why else "", f"{WAY.name} {len(units.log)}"):
                return Refused(refused)
            self._needs.second_run.join(vote)
            vote.watch()
        if why is None:
            run = _SecondRun(self._needs, optimizer, alarm, returned, error, vote)
            try:
                why = run.go()
                if vote is not None and (parted := vote.come_back(why or "")):
                    why = parted
                if why is None:
                    why = run.conclude()
            finally:
                if vote is not None:
                    vote.leave("the second run failed")  # where it has not come back
                lost, twice = run.put_back()
        if why is not None:
            return WAY.refuses(why + written_twice(twice))
        alarm["rerun_text"] += written_twice(twice)
        if lost:
            alarm["rerun_text"] += (
                f"; it also wrote a second time, and this could not be put back: {', '.join(lost[:8])}"
            )
        return Outcome()

    def raised(self, error: BaseException) -> None:
        """A unit gives up. Where it holds a value that is not finite, that is explained while everything it used is
        still there; whether it is an alarm is seen when the program ends by it."""
        units = self._needs.units
        if self._needs.config.on_alarm == "raise" or raised_from_ours(error) or units.times_raised >= 3:
            return
        units.count_raised()
        found = self._needs.bad_windows.in_frames(error)
        value = found[2][0][2] if found is not None else None
        found = found or self._needs.bad_windows.pending()
        if found is not None and serves(self.explain(found[0], found[1], value, error), found[1]):
            units.note_explained(error, found)

    def explained(self, error: BaseException | None) -> BadWindow | None:
        """(optimizer, alarm, sinks) with its reason, where the program ends by what a unit raised; else None."""
        explained, chain = self._needs.units.explained, []
        while explained is not None and error is not None and error not in chain:
            if error is explained[0]:
                return explained[1]
            chain.append(error)
            error = error.__cause__ or error.__context__
        return None


class _SecondRun:
    """Sets aside what a second call of the units changes, makes it, and puts everything back."""

    def __init__(self, needs: Needs, optimizer, alarm, returned, error, vote):
        self.needs, self.optimizer, self.alarm, self.returned, self.error = needs, optimizer, alarm, returned, error
        self.units, self.vote = needs.units, vote
        self.units.note_recorded(None)
        self.log = needs.units.log[-1:] if returned is not None and error is None else list(needs.units.log)
        self.expected = self._bits(self.log[0].serial, returned)
        # In the first step those of the program's own are not known yet.
        self.later_known = (
            []
            if self.log[0].known == needs.streams.generators
            else [g for g in needs.streams.generators if g not in self.log[0].known]
        )
        self.stood_at = [_native.checksum(g.get_state()) for g in self.later_known]
        self.generators = self.log[-1].after or _native.take_generators()
        watched = sinks_of.watched_optimizers()
        params = {id(p): p for o in watched for p in optimizer_members.parameters(o)}
        params.update((id(p), p) for module in optimizer_members.roots(optimizer) for p in module.parameters())
        # DistributedDataParallel may keep gradients as views of memory of its own, which a second backward writes.
        kept = (lambda g: sharding.copied(g) if g is not None else None) if vote is not None else (lambda g: g)
        self.params = [(p, kept(p.grad), p.requires_grad) for p in params.values()]
        self.scaler = needs.scaling.scaler
        self.stages = (
            {k: dict(v) for k, v in self.scaler._per_optimizer_states.items()} if self.scaler is not None else {}
        )
        self.ledger = Ledger(sys._getframe(), params.values(), watched)
        needs.holds.hold(optimizer_members.sharing(optimizer))
        needs.holds.hold_scaler(self.scaler)
        self.isolation = IsolatedRun(self.ledger)
        self.isolation.begin()
        self.result: Any = None
        self.units.begin_again(optimizer)
        _native.begin_again()

    def _bits(self, since, returned=None):
        """What has to come out again: losses and gradients, or the loss that a closure returned."""
        if returned is not None:
            return [_native.checksum(returned.detach())]
        found = [loss["sum"] for loss in _native.window(self.optimizer)["losses"] if loss["serial"] > since]
        return found, [
            _native.checksum(p.grad) if p.grad is not None else 0 for p in optimizer_members.parameters(self.optimizer)
        ]

    def go(self):
        """The calls. Returns why they did not do what the first run did, or None."""
        units = self.units
        if units.first is not None and units.first[0] == units.window:
            for buffer, copy in units.first[1]:
                buffer.detach().copy_(copy)
        self.ledger.second_run_begins(self.needs.recent.left_before(self.alarm))
        if self.later_known:
            _native.watch_generators(self.log[0].known)
        for p, grad, _ in self.params:
            p.grad = torch.zeros_like(grad) if units.had_gradients and grad is not None else None
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()
        since = _native.loss_serial()
        # inside the step of an optimizer: what is called is the program's, and no arithmetic of the optimizer
        _native.trace_stop()
        self.isolation.record(self.needs.capsules, self.log[0].generators)
        try:
            for unit in self.log:
                self.result = unit.call_again()
            generators = _native.take_generators()
            if not self.log[-1].ended or self.error is not None:
                return "the second run did not come to this step"
            if self.returned is None:
                self._after_units()
        except Reached:
            generators = _native.take_generators()
            if self.log[-1].ended or units.again_at is not self.optimizer:
                return "an optimizer stepped that did not before"
        except Exception as e:
            generators = _native.take_generators()
            if type(e) is not type(self.error):
                return f"the second run raised {type(e).__name__}"
            found = self.needs.bad_windows.in_frames(e)
            self.result = found[2][0][2] if found is not None else None
        finally:
            optimizer_members.moved()
            _native.watch_generators(self.needs.streams.generators)
        if self.returned is not None:
            now = self._bits(0, self.result) if is_a(self.result, torch.Tensor) else None
        else:
            now = self._bits(since)
        drew_alike = generators == self.generators and self.stood_at == [
            _native.checksum(g.get_state()) for g in self.later_known
        ]
        self.same = now == self.expected and drew_alike
        if not self.same and not self.isolation.is_eager:
            return "loss or gradients came out with other bits" if drew_alike else "other random numbers were drawn"
        return None

    def _after_units(self):
        """Unscaling and clipping were done between the last unit and `step`."""
        mine = id(self.optimizer)
        if _unscaled(self.stages.get(mine)) and not _unscaled(self.scaler._per_optimizer_states.get(mine)):
            self.scaler.unscale_(self.optimizer)
        _native.clip_again()

    def conclude(self) -> str | None:
        """What the trace says, into the alarm. Returns why it does not explain it, or None."""
        alarm = self.alarm
        if self.returned is not None:
            _native.tape_outcome("loss", "loss", self.result.detach())
        self.needs.capsules.stop(self.optimizer)
        sinks: list[Sink] = (
            sinks_of.of_optimizer(self.optimizer) if self.returned is None else [("loss", "loss", self.result.detach())]
        )
        failed_again = bool(sinks) or any(loss["bad"] for loss in _native.window(self.optimizer)["losses"])
        names = {u.name() for u in self.log}
        times = (f", {len(self.log)} times" if len(self.log) > 1 else "") + (
            ", on all ranks together" if self.vote is not None else ""
        )
        text = f"{', '.join(sorted(names))} called again in place{times}" + (
            ", eagerly instead of compiled" if self.isolation.is_eager else ""
        )
        found: Findings = {}
        if self.same or failed_again:
            began_with = [*self.ledger.ruined(), *self.ledger.rebound()]
            found = self.needs.analysis.findings(self.optimizer, sinks, bound=began_with)
            if (why := carried_state.why(found.get("carried"))) and self.vote is None:
                return why
        if not self.same and not failed_again:
            text += f"; the step came out finite: {compat.ONLY_COMPILED}"
            note_rerun(alarm, WAY.name, "order-dependent", False, text)
            return None
        incident.apply(alarm, found)
        if self.error is None:
            self.needs.second_run.note_recorded()
        else:  # it is reported when the program has ended by it: of this step, if no other has come by then
            self.units.note_recorded(_native.windows_closed())
        what = (
            "the value"
            if self.error is not None
            else "the loss"
            if self.returned is not None
            else incident.compared({"losses": self.expected[0], "gradients": self.expected[1]}, "advisory" in alarm)
        )
        text += f"; {what} came out with the same bits" if self.same else "; it failed again, with other bits"
        note_rerun(alarm, WAY.name, "persistent", self.same, text)
        return None

    def put_back(self) -> tuple[list[str], list[str]]:
        """Everything as before the second run. Returns the names of what could not be, and what was written or done
        twice."""
        self.units.end_again()
        *_, twice, lost, _ = in_any_case(
            lambda: self.needs.recent.leave(self.optimizer, self.alarm, self.ledger),
            _native.trace_stop,
            _native.trace_clear,
            self._put_gradients_back,
            self.isolation.end,
            self.isolation.put_objects_back,
            _native.end_again,
        )
        trace_continues(self.needs.config)
        return lost, twice

    def _put_gradients_back(self):
        if not self.needs.second_run.is_recorded and self.units.recorded_at is None:
            _native.tape_clear()
        for p, grad, requires in self.params:
            p.grad = None
            if p.requires_grad is not requires:
                p.requires_grad_(requires)
            p.grad = grad
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()
            self.scaler._per_optimizer_states.update(self.stages)


def _unscaled(state):
    return state is not None and state["stage"] is torch.amp.grad_scaler.OptState.UNSCALED
