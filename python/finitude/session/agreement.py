"""One decision of all ranks that step together: before such a step is applied each says whether it is bad, by one MAX
of three integers, and a rank that sees nothing bad itself skips the step that is bad on another.

It is asked only where the ranks step together by construction (side_group.Stepping): a rank that
steps an optimizer of its own waits for nobody. Where DistributedDataParallel has averaged the gradients all ranks see
the same ones, and nothing is exchanged.

Each step is exchanged once, in whichever of these comes first: its alarm (say), the end of its verdict (settle), or
the end of the gate's hook (before_step). A rank that raises says so too: the others do not wait for it."""

from __future__ import annotations

import os
import sys

from .. import _native
from ..program import optimizer_members, ranks, side_group
from . import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm, Allowed, Context, Optimizer, Verdict
    from ..rerun.rank_vote import Ballot

FINE, HARMLESS, BAD = 0, 1, 2
_RANK_BITS = 32


def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Before each step, in the place of the gate's own hook, which it calls."""
    session = native_callbacks.session
    if session is None or os.getpid() != session.pid:
        return _native.optimizer_pre_hook(optimizer, args, kwargs)
    session.part(session.agreement.begin_step, optimizer, len(args) > 1 or "closure" in kwargs)
    try:
        return _native.optimizer_pre_hook(optimizer, args, kwargs)
    finally:
        session.part(session.agreement.end_step)


class Agreement:
    def __init__(self, context: Context, ballot: Ballot, allowed: Allowed, act: Callable[..., Verdict], explains: bool):
        """act: carries the policy out (Decision.act). explains: this process explains a step of another one."""
        self._context, self._ballot, self._allowed, self._act = context, ballot, allowed, act
        config = context.config
        self._is_on = not explains and config.level == "gate" and config.on_alarm in ("skip", "rollback")
        self._known: dict[int, side_group.Stepping | None] = {}  # by the optimizer's number, from its first step on
        self._groups: dict[tuple[int, ...], side_group.SideGroup] = {}
        self.owed: Optimizer | None = None  # about whose step nothing has been said yet
        self._asked_ranks: tuple[int, ...] = ()
        self._key = 0
        self._is_forced = False

    def wants(self, optimizer: Optimizer) -> bool:
        """May steps of this optimizer be asked about? Called where it is made, and again at its first step."""
        if not self._is_on:
            return False
        return bool(side_group.members(optimizer)) or bool(ranks.parallel_models())

    def begin_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        if not self._is_on or has_closure or native_callbacks.runs_again() or not _native.is_registered(optimizer):
            return
        if _native.backward_under_way() or self._allowed.is_any:
            return
        window = _native.window(optimizer)
        ordinal = window["ordinal"]
        if ordinal not in self._known:
            # A plain GradScaler may skip on one rank only, which then does not come here.
            scaler = optimizer_members.scaler_of(optimizer)
            self._known[ordinal] = side_group.Stepping(optimizer) if scaler is None else None
        known = self._known[ordinal]
        of = known.together() if known is not None else ()
        if not of or window["on_device"]:
            return
        # Not the ordinal of the optimizer: a rank that has one more than the others numbers them otherwise.
        self.owed, self._asked_ranks, self._key = optimizer, of, window["step"]
        _native.enter_closure()  # the gate asks Python about this window whatever it finds
        self._is_forced = True

    def end_step(self) -> None:
        """The gate's hook has returned or raised."""
        self._leave_forced()
        if self.owed is not None and self._exchange(BAD if self._raised() else FINE) and self._is_on:
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
        verdict = judge(optimizer)
        if self.owed is not optimizer:
            return verdict
        heard = self._exchange(FINE if verdict is None else BAD)
        return self._follow(optimizer, heard) if heard and verdict is None else verdict

    def say(self, optimizer: Optimizer, alarm: Alarm) -> None:
        """This rank is in an alarm about the open window of that optimizer."""
        if self.owed is not optimizer:
            return
        heard = self._exchange(HARMLESS if alarm["harmless"] else BAD, alarm)
        if heard:
            alarm["harmless"] = heard >> _RANK_BITS == HARMLESS
            self._note_all(alarm)

    def _note_all(self, alarm):
        if len(self._asked_ranks) == ranks.world()[1]:
            self._ballot.note_all(alarm)

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
        alarm["cause"] = {
            "class": "other-rank",
            "confidence": "proven",
            "text": f"rank {rank} found the bad value, in its own part of the step",
            "experiments": [],
        }
        self._note_all(alarm)
        vote = self._context.part(self._ballot.vote_on, optimizer, alarm)
        if vote:
            vote.cast("what it holds is finite, so that it runs nothing again")
        _native.consume_losses(optimizer)
        return self._act(optimizer, alarm, [], rerun_wanted=False)
