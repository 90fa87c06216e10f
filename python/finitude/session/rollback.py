"""The way back: with --rollback-every a copy of the training is taken after every so many steps, and --on-alarm
rollback puts the newest good one back into the running program.

The copy is taken right after an optimizer's step has returned, and put back at such a place too. What the loop does
there, as the step of a scheduler, is then what it did after the step of the copy.

A copy is good once so many steps after it were finite, it is finite itself, and no growth was warned of that began
before it. There are two: the newest good one, and a younger one that waits to become good.

Several ranks copy at the same steps and go back to the same copy, all or none (rollback_ranks.py)."""

from __future__ import annotations

import os

from .. import _native
from ..base.config import rolls_back
from ..base.say import say
from ..program import optimizer_members, ranks, state_copy, step_wrapper
from . import native_callbacks, rollback_ranks, rollback_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm, Config, Holds, Optimizer
    from ..program.grad_scaler import Scaling
    from ..report.document import Report
    from ..report.new_alarms import Damage
    from ..rerun.rank_vote import Ballot
    from .lowered_rate import LoweredRate

TRIAL = 10  # steps that have to be finite after a copy
SHARE = 4  # of the memory that is free, where --rollback-mb says nothing
NONE_GOOD = "no copy is good yet"
LATE = "no copy is from before the growth that led to it"


def after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """torch calls it after each step of any optimizer."""
    session = native_callbacks.session
    if session is not None and os.getpid() == session.pid:
        session.part(session.rollback.stepped, optimizer)


def before_step(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """The same before each step."""
    session = native_callbacks.session
    if session is not None and session.holds.is_stale and os.getpid() == session.pid:
        session.part(session.rollback.leave_out_stale, optimizer, len(args) > 1 or "closure" in kwargs)


class Rollback:
    def __init__(
        self,
        config: Config,
        report: Report,
        holds: Holds,
        scaling: Scaling,
        damage: Damage,
        lowered_rate: LoweredRate,
        ballot: Ballot,
        explains: bool,
    ):
        """explains: this process explains a step of another one, and keeps no copies."""
        self._lowered_rate, self._ballot = lowered_rate, ballot
        self._report, self._holds, self._scaling, self._damage = report, holds, scaling, damage
        self._every, self._most, self._max_returns = config.rollback_every, config.rollback_mb << 20, config.max_skips
        self._factor = config.rollback_lr
        self._rows = rollback_rows.SkipsBadRows() if config.rollback_skip_rows else None
        self.is_on = self._is_wanted = bool(self._every) and rolls_back(config) and not explains
        self._ended = ""  # why no copies are kept any more
        self._shared: rollback_ranks.SharedCopies | None = None  # of several ranks, from the first iteration on
        step_wrapper.hooks[:] = [before_step, after_step] if self.is_on else []  # step_dumps.py adds its own
        self._first: int | None = None  # id of the optimizer that begins an iteration of the loop
        self._last: int | None = None  # that ends one
        self._before: int | None = None  # that stepped last
        self._steps = self._every - 1  # since the last copy; the first one comes after the first iteration
        self._good: state_copy.StateCopy | None = None
        self._young: state_copy.StateCopy | None = None
        self._spare: state_copy.StateCopy | None = None
        self._returns = 0  # to the copy that is good now
        self._settled = 0  # warnings that a return has dealt with

    # -- copies -----------------------------------------------------------------------------------

    def stepped(self, optimizer: Optimizer) -> None:
        """Called after each step, also one that was skipped."""
        if not self.is_on or native_callbacks.runs_again() or not _native.is_registered(optimizer):
            return
        number = id(optimizer)
        if self._first is None:
            self._first = number
        elif self._last is None and number == self._first:
            self._last = self._before
        self._before = number
        if number != self._last:
            return
        if self._shared is None and ranks.several():
            self._begin_together()
        self._steps += 1
        if self._steps >= self._trial():
            self._try_young()
        if self._steps >= self._every and self.is_on:
            self._steps = 0
            self._take(optimizer)

    def _begin_together(self):
        try:
            self._shared = rollback_ranks.SharedCopies()
        except rollback_ranks.NotShared as e:
            self._end(str(e))
            return
        # What the ranks found of a copy has to be known to all as the next one takes the place of one.
        self._steps += max(0, 2 - self._every)
        self._every = max(2, self._every)

    def _trial(self):
        """Of a copy: how many steps after it have to be finite."""
        return min(self._every - (self._shared is not None), TRIAL)

    def _try_young(self):
        young = self._young
        if young is None or young.is_tried:
            return
        young.is_tried = True
        is_good = self._is_before_growth(young) and young.is_sound()
        if self._shared is None:
            self._settle_young(is_good)
        elif is_good:
            self._of_ranks(self._shared.note_good, young.number)

    def _settle_young(self, is_good):
        young, self._young = self._young, None
        if not is_good:
            self._spare = young
            return
        self._spare, self._good, self._returns = self._good, young, 0

    def _settle_with_others(self):
        """What all ranks found of the young copy. Each asks after a step that all have taken since they tried it."""
        if self._shared is None or not self.is_on:
            return
        if self._young is not None:
            self._settle_young(self._young.is_tried and self._of_ranks(self._shared.is_good, self._young.number))
        if self.is_on and (why := self._of_ranks(self._shared.ended)):
            self._end(why)

    def _of_ranks(self, ask, *args):
        try:
            return ask(*args)
        except rollback_ranks.NotShared as e:
            self._end(str(e))
            return None

    def _growth(self):
        """[(class of the optimizer, step)] since which something grows."""
        return [(w["optimizer"], w["since"]) for w in self._report.warnings[self._settled :] if _grows(w)]

    def _is_before_growth(self, copy):
        kinds = {type(o).__name__: copy.steps[_native.window(o)["ordinal"]] for o in copy.optimizers()}
        return all(kinds.get(kind, since) <= since for kind, since in self._growth())

    def _take(self, optimizer):
        self._settle_with_others()
        if not self.is_on:
            return
        if self._shared is None and self._growth():  # its state is on the way to a bad one; ranks copy all the same
            return
        optimizers = _optimizers()
        if self._shared is not None and any(map(_is_on_device, optimizers)):
            self._end("several ranks do not go back together where parameters are on a device")
            return
        wanted = 2 * state_copy.size(optimizers)
        most = self._most or _free() // SHARE // ranks.on_this_machine()
        if wanted > most:
            given = f"--rollback-mb gives {most >> 20}" if self._most else f"a quarter of what is free is {most >> 20}"
            self._end(f"two copies of the training take {(wanted >> 20) + 1} MB, {given}")
            return
        copy, self._spare = state_copy.StateCopy(self._spare), None
        try:
            copy.take(optimizers)
        except state_copy.NotCopied as e:
            self._end(f"there is no copy of {e}")
            return
        copy.lowered = dict(self._lowered_rate.factors)
        window = _native.window(optimizer)
        copy.number = window["step"] + self._scaling.skipped[window["ordinal"]]  # what a GradScaler skips counts
        self._young = copy

    def _end(self, why: str) -> None:
        self.is_on, self._young, self._good, self._spare = False, None, None, None
        self._ended = why
        if self._shared is not None:
            self._shared.end(why)
        self._report.complain(f"--rollback-every keeps no copies: {why}")

    # -- an alarm ---------------------------------------------------------------------------------

    def decide(self, optimizer: Optimizer | None, alarm: Alarm, ordinal: int, written: bool) -> str | None:
        """What becomes of an alarm whose action is rollback: "back", "stop", or None: what it is without copies.
        written: by a step that was taken. With several ranks: the same on all."""
        if not self._is_wanted:
            return None
        if self._shared is not None:
            self._settle_with_others()
        elif self.is_on and self._steps >= self._trial():
            self._try_young()
        self._young = None  # too few finite steps came after it
        why = self._refusal(alarm, ordinal)
        if not why and self._returns >= self._max_returns:
            alarm["text"] += f"; training went back to one copy {self._returns} times, as often as --max-skips lets it"
            return "stop"
        if self._shared is not None or ranks.several():
            call = alarm["step"] + self._scaling.skipped[ordinal]
            way = f"step {call} to {self._good.number if self._good is not None else 'nowhere'}"
            note = self._rows.of_this_rank(alarm) if self._rows is not None else ""
            if refused := self._ballot.all_go_back(optimizer, ordinal, alarm, written, why, way, note):
                alarm["text"] += f"; training did not go back: {refused}"
                return None
        elif why == LATE:
            alarm["text"] += f"; {why}"
        return None if why else "back"

    def _refusal(self, alarm, ordinal):
        """Why this process does not go back, or ""."""
        copy = self._good
        if copy is None:
            return self._ended or NONE_GOOD
        if _native.backward_under_way():
            return "a backward is under way"
        onset = alarm.get("onset")
        is_late = onset is not None and copy.steps.get(ordinal, 0) > onset["step"]
        if is_late or not self._is_before_growth(copy):
            self._good = None
            return LATE
        return ""

    def leave_out_stale(self, optimizer: Optimizer, has_closure: bool) -> None:
        """Gradients of another optimizer that the same backward left are of weights that are gone: its step runs
        without them. A closure computes new ones."""
        if not has_closure and _native.is_registered(optimizer) and step_wrapper.is_torchs(type(optimizer)):
            _native.take_rest(optimizer)

    def go_back(self, optimizer: Optimizer | None, alarm: Alarm, ordinal: int, vetoed: bool) -> bool:
        """vetoed: the program's step is not taken, else it was. True: all of it was put back."""
        copy, holds = self._good, self._holds
        assert copy is not None
        self._returns += 1
        self._steps = 0
        holds.release()
        factor = self._factor**self._returns
        copy.put_back(factor)
        self._lowered_rate.keep(copy.optimizers(), copy.lowered)
        holds.until_backward()
        self._settled = len(self._report.warnings)
        for number in copy.steps:
            self._damage.clear(number)
        if vetoed and (scaler := self._scaling.scaler) is not None:
            state_copy.after_update(scaler)
            holds.hold_scaler(scaler)
        if vetoed and optimizer is not None:
            holds.release_at_next_backward(optimizer_members.sharing(optimizer))
        if self._rows is not None:
            together = self._shared is not None
            said = self._rows.skip_same(self._ballot.notes()) if together else self._rows.skip(alarm)
            alarm["text"] += f"; {said}"
        step = copy.steps.get(ordinal, 0) - 1
        text = f"training went back to the state after step {step}"
        if factor != 1:
            text += f", with {factor:g} times its learning rate"
        alarm["action"] = text
        self._report.note_rollback(alarm, step, factor)
        if self._shared is None or ranks.world()[0] == 0:
            say(f"finitude: step {alarm['step']}: {text}\n")
        return True


def _grows(warning):
    return warning["what"] == "growth"


def _is_on_device(optimizer):
    return any(p.device.type != "cpu" for p in optimizer_members.parameters(optimizer))


def _optimizers() -> list[Optimizer]:
    """One of each that share groups, as a wrapper and what it holds."""
    found: dict[int, Optimizer] = {}
    for o in optimizer_members.instances(optimizer_members.KINDS[1]):
        if _native.is_registered(o):
            found.setdefault(id(o.param_groups), o)
    return list(found.values())


def _free() -> int:
    """Bytes of memory that are free, or can be."""
    with open("/proc/meminfo", encoding="ascii") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0
