"""The way back: with --rollback-every a copy of the training is taken after every so many steps, and --on-alarm
rollback puts the newest good one back into the running program.

The copy is taken right after an optimizer's step has returned, and put back at such a place too. What the loop does
there, as the step of a scheduler, is then what it did after the step of the copy.

A copy is good once so many steps after it were finite, it is finite itself, and no growth was warned of that began
before it. There are two: the newest good one, and a younger one that waits to become good."""

from __future__ import annotations

import os

from .. import _native
from ..base.config import rolls_back
from ..base.say import say
from ..program import optimizer_members, ranks, state_copy, step_wrapper
from . import native_callbacks, rollback_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm, Config, Holds, Optimizer
    from ..program.grad_scaler import Scaling
    from ..report.damage import Damage
    from ..report.document import Report
    from .lowered_rate import LoweredRate

TRIAL = 10  # steps that have to be finite after a copy
SHARE = 4  # of the memory that is free, where --rollback-mb says nothing


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
        explains: bool,
    ):
        """explains: this process explains a step of another one, and keeps no copies."""
        self._lowered_rate = lowered_rate
        self._report, self._holds, self._scaling, self._damage = report, holds, scaling, damage
        self._every, self._most, self._max_returns = config.rollback_every, config.rollback_mb << 20, config.max_skips
        self._factor = config.rollback_lr
        self._rows = rollback_rows.SkipsBadRows() if config.rollback_skip_rows else None
        self.is_on = bool(self._every) and rolls_back(config) and not explains
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
        self._steps += 1
        if self._steps >= min(self._every, TRIAL):
            self._try_young()
        if self._steps >= self._every:
            self._steps = 0
            self._take()

    def _try_young(self):
        young, self._young = self._young, None
        if young is None:
            return
        if not self._is_before_growth(young) or not young.is_sound():
            self._spare = young
            return
        self._spare, self._good, self._returns = self._good, young, 0

    def _growth(self):
        """[(class of the optimizer, step)] since which something grows."""
        return [(w["optimizer"], w["since"]) for w in self._report.warnings[self._settled :] if _grows(w)]

    def _is_before_growth(self, copy):
        kinds = {type(o).__name__: copy.steps[_native.window(o)["ordinal"]] for o in copy.optimizers()}
        return all(kinds.get(kind, since) <= since for kind, since in self._growth())

    def _take(self):
        if self._growth():  # its state is on the way to a bad one
            return
        if ranks.several():
            self._end("several ranks would have to go back together")
            return
        optimizers = _optimizers()
        wanted = 2 * state_copy.size(optimizers)
        most = self._most or _free() // SHARE
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
        self._young = copy

    def _end(self, why: str) -> None:
        self.is_on, self._young, self._good, self._spare = False, None, None, None
        self._report.complain(f"--rollback-every keeps no copies: {why}")

    # -- an alarm ---------------------------------------------------------------------------------

    def decide(self, alarm: Alarm, ordinal: int) -> str | None:
        """What becomes of an alarm whose action is rollback: "back", "stop", or None: what it is without copies."""
        if not self.is_on:
            return None
        if self._steps >= min(self._every, TRIAL):
            self._try_young()
        self._young = None  # too few finite steps came after it
        copy = self._good
        if copy is None or _native.backward_under_way():
            return None
        onset = alarm.get("onset")
        is_late = onset is not None and copy.steps.get(ordinal, 0) > onset["step"]
        if is_late or not self._is_before_growth(copy):
            self._good = None
            alarm["text"] += "; no copy is from before the growth that led to it"
            return None
        if self._returns >= self._max_returns:
            alarm["text"] += f"; training went back to one copy {self._returns} times, as often as --max-skips lets it"
            return "stop"
        return "back"

    def leave_out_stale(self, optimizer: Optimizer, has_closure: bool) -> None:
        """Gradients of another optimizer that the same backward left are of weights that are gone: its step runs
        without them. A closure computes new ones."""
        if not has_closure and _native.is_registered(optimizer) and step_wrapper.is_torchs(type(optimizer)):
            _native.take_rest(optimizer)

    def go_back(self, optimizer: Optimizer | None, alarm: Alarm, ordinal: int, vetoed: bool) -> None:
        """vetoed: the program's step is not taken, else it was."""
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
            alarm["text"] += f"; {self._rows.skip(alarm)}"
        step = copy.steps.get(ordinal, 0) - 1
        text = f"training went back to the state after step {step}"
        if factor != 1:
            text += f", with {factor:g} times its learning rate"
        alarm["action"] = text
        self._report.note_rollback(alarm, step, factor)
        say(f"finitude: step {alarm['step']}: {text}\n")


def _grows(warning):
    return warning["what"] == "growth"


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
