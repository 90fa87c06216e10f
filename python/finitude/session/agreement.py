"""One decision of all ranks that step together: before such a step is applied each says whether it is bad, by one MAX
of three integers, and a rank that sees nothing bad itself skips the step that is bad on another.

It is asked only where the ranks step together by construction (program/step_ranks.py): a rank that
steps an optimizer of its own waits for nobody. Where DistributedDataParallel has averaged the gradients all ranks see
the same ones, and nothing is exchanged, unless a GradScaler steps.

Each step is exchanged once, in whichever of these comes first: its alarm (say), the end of its verdict (settle), or
the end of the gate's hook (before_step). A rank that raises says so too: the others do not wait for it. The step of a
GradScaler is exchanged before the scaler looks at gradients, which may be a collective operation: about the unscaled
loss only. A step with a closure is exchanged when its closure has returned.

Where the program is run again from its start, nothing is exchanged: each rank skips the steps that all skipped,
whatever it holds itself."""

from __future__ import annotations

import functools
import os
import sys

from .. import _native
from ..program import optimizer_members, ranks, side_group, step_ranks
from ..rerun import ladder
from . import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm, Allowed, Context, Optimizer, Verdict
    from ..program.grad_scaler import Scaling
    from ..rerun.rank_vote import Ballot

FINE, HARMLESS, BAD = 0, 1, 2
_RANK_BITS = 32


def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Before each step, in the place of the gate's own hook, which it calls."""
    session = native_callbacks.session
    if session is None or os.getpid() != session.pid:
        return _native.optimizer_pre_hook(optimizer, args, kwargs)
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    session.part(session.agreement.begin_step, optimizer, closure is not None)
    try:
        return _native.optimizer_pre_hook(optimizer, args, kwargs)
    finally:
        session.part(session.agreement.end_step)


def scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for GradScaler.step, which the gate has replaced by `original`."""

    @functools.wraps(original)
    def step(self, optimizer, *args, **kwargs):
        session = native_callbacks.session
        if session is None or os.getpid() != session.pid or not getattr(self, "_enabled", False):
            return original(self, optimizer, *args, **kwargs)
        agreement = session.agreement
        try:
            if session.part(agreement.begin_scaled, optimizer):
                if verdict := native_callbacks.on_scaler_agreed(optimizer, self):
                    return session.part(agreement.leave_out, optimizer) if verdict is True else None
            return original(self, optimizer, *args, **kwargs)
        finally:
            session.part(agreement.end_scaled)

    return step


class Agreement:
    def __init__(
        self,
        context: Context,
        ballot: Ballot,
        allowed: Allowed,
        scaling: Scaling,
        act: Callable[..., Verdict],
    ):
        """act: carries the policy out (Decision.act)."""
        self._context, self._ballot, self._allowed, self._scaling, self._act = context, ballot, allowed, scaling, act
        config = context.config
        # For the whole run, whatever `finitude ctl` changes: ranks read that at alarms only, so that one would begin to
        # ask in an alarm of its own while the others take the step. What they do about it is session/control.py's.
        self._is_on = context.target is None and config.level == "gate" and config.on_alarm in ("skip", "rollback")
        self._known: dict[int, step_ranks.Stepping] = {}  # by the optimizer's number, from its first step on
        self._groups: dict[tuple[int, ...], side_group.SideGroup] = {}
        self.owed: Optimizer | None = None  # about whose step nothing has been said yet
        self._asked_ranks: tuple[int, ...] = ()
        self._key = 0
        self._is_forced = False
        self._scaled: Optimizer | None = None  # a GradScaler's step of it is under way, and has been asked about
        self._followed: Optimizer | None = None  # the last of those that another rank has found bad
        self._left_out: Optimizer | None = None  # the step of it that comes is bad on another rank

    def wants(self, optimizer: Optimizer) -> bool:
        """May steps of this optimizer be asked about? Called where it is made, and again at its first step."""
        return self._context.target is not None or self._is_on and step_ranks.may_step_together(optimizer)

    def begin_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        if self._left_out is optimizer:
            self._force()
        elif not has_closure and optimizer is not self._scaled and self.begin(optimizer):
            self._force()

    def begin(self, optimizer: Optimizer, is_scaled: bool = False) -> bool:
        """Are the ranks to be asked about the step whose window is open? From now on it is owed."""
        if (target := self._context.target) is not None:
            is_left_out = _native.is_registered(optimizer) and target.left_out(optimizer) is not None
            self.owed = optimizer if is_left_out else None
            return is_left_out
        if not self._is_on or native_callbacks.runs_again() or not _native.is_registered(optimizer):
            return False
        if _native.backward_under_way() or self._allowed.is_any:
            return False
        window = _native.window(optimizer)
        ordinal = window["ordinal"]
        if ordinal not in self._known:
            self._known[ordinal] = step_ranks.Stepping(optimizer)
        of = self._known[ordinal].together(is_scaled)
        if not of or window["on_device"]:
            return False
        # Not the ordinal of the optimizer: a rank that has one more than the others numbers them otherwise. A
        # GradScaler of each rank may skip by itself, and what it skips is no step of the optimizer.
        key = window["step"] + self._scaling.skipped[ordinal]
        self.owed, self._asked_ranks, self._key = optimizer, of, key
        return True

    def _force(self):
        """The gate asks Python about this window whatever it finds."""
        _native.enter_closure()
        self._is_forced = True

    def begin_scaled(self, optimizer: Optimizer) -> bool:
        """A GradScaler's step comes. True: the ranks are to be asked, and this one has no bad loss; or it ends the
        second run of such a step."""
        if self.ends_second_run(optimizer):
            return True
        self._followed = None
        if not self.begin(optimizer, is_scaled=True):
            return False
        self._scaled = optimizer
        return not any(loss["bad"] for loss in _native.window(optimizer)["losses"])

    def ends_second_run(self, optimizer: Optimizer) -> bool:
        """It is that of a GradScaler's step that another rank has found bad, and the scaler has not looked yet."""
        return self._followed is optimizer and native_callbacks.runs_again()

    def end_scaled(self) -> None:
        self._scaled = None
        self.end_step()

    def leave_out(self, optimizer: Optimizer) -> None:
        """The gate leaves out the optimizer's own step, in the place of a GradScaler's, and keeps its books as for any
        other step that it leaves out."""
        self._left_out = self.owed = optimizer
        try:
            optimizer.step()
        finally:
            self._left_out = self.owed = None

    def end_step(self) -> None:
        """The gate's hook has returned or raised."""
        self._leave_forced()
        if self.owed is not None and self._is_on and self._exchange(BAD if self._raised() else FINE) and self._is_on:
            self._give_up("a step that is bad on another rank was applied by this one")
        self.owed = None

    @staticmethod
    def _raised():
        return sys.exc_info()[0] is not None

    def _leave_forced(self):
        if self._is_forced:
            self._is_forced = False
            _native.leave_closure()

    def settle(self, optimizer: Optimizer, judge: Callable[[Optimizer], Verdict]) -> Verdict:
        """The verdict on a window: this rank's own, or what it hears. judge: gives its own."""
        self._leave_forced()
        if self._left_out is optimizer:
            self.owed = None
            return True
        if (target := self._context.target) is not None and self.owed is optimizer:
            self.owed = None
            return target.on_window(optimizer, ())
        verdict = judge(optimizer)
        if self.owed is not optimizer:
            return verdict
        heard = self._exchange(FINE if verdict is None else BAD)
        return self._follow(optimizer, heard) if heard and verdict is None else verdict

    def say(self, optimizer: Optimizer, alarm: Alarm) -> bool:
        """This rank is in an alarm about the open window of that optimizer. True: so are all ranks of the run now."""
        heard = self.owed is optimizer and self._exchange(HARMLESS if alarm["harmless"] else BAD, alarm)
        if not heard:
            return False
        alarm["harmless"] = heard >> _RANK_BITS == HARMLESS
        return self._note_all(alarm)

    def _note_all(self, alarm):
        are_all = len(self._asked_ranks) == ranks.world()[1]
        if are_all:
            self._ballot.note_all(alarm)
        return are_all

    def _exchange(self, code, alarm=None):
        """The most of what all say, 0: nothing bad, or it could not be found out."""
        self.owed = None
        mine = code << _RANK_BITS | ranks.world()[0] if code else 0
        try:
            group = self._groups.get(self._asked_ranks)
            if group is None:
                group = self._groups[self._asked_ranks] = side_group.SideGroup(self._asked_ranks)
            return group.most(mine, self._key)
        except side_group.CannotAgree as e:
            self._give_up(str(e))
            if alarm is not None:
                alarm["text"] += f"; the ranks could not agree on this step: {e}"
            return 0

    def _give_up(self, why):
        self._is_on = False
        for group in self._groups.values():
            group.close()
        self._context.report.complain(f"ranks do not agree on steps any more: {why}")

    def _follow(self, optimizer, heard):
        """Another rank is bad in this step: the policy is carried out here too."""
        rank = heard & (1 << _RANK_BITS) - 1
        alarm = self._context.alarms.of(optimizer, "gradient", optimizer_members.names(optimizer)[0])
        alarm["harmless"] = heard >> _RANK_BITS == HARMLESS
        what = "loss" if alarm["harmless"] else "step"
        alarm["text"] = f"the {what} of rank {rank} is not finite; what this rank holds is finite"
        if optimizer is self._scaled:
            alarm["text"] = f"the unscaled loss of rank {rank} is not finite; that of this rank is finite"
        alarm["cause"] = {
            "class": "other-rank",
            "confidence": "proven",
            "text": f"rank {rank} found the bad value, in its own part of the step",
            "experiments": [],
        }
        self._note_all(alarm)
        _native.consume_losses(optimizer)
        self._followed = self._scaled
        return self._act(optimizer, alarm, [], ways=ladder.TOGETHER)
