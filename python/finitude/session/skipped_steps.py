"""Bad steps that are skipped: the program continues as if its loop had said `continue`, so schedulers, averaged models
and scalers do not move for a step that was not applied.

Held by class, not by instance: an attribute on a scheduler would end up in its state_dict.
"""

from __future__ import annotations

import functools
import weakref

import torch

from .. import _native
from ..base.kinds import is_a
from ..program import batch_source, optimizer_members, sinks as sinks_of, step_wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from .._native import Known
    from ..base.types import Optimizer
    from ..program.grad_scaler import Scaling


def _moving(optimizers):
    for scheduler in optimizer_members.schedulers(optimizers):
        yield scheduler, "step"
    for averaged in optimizer_members.averaged_models():
        yield averaged, "update_parameters"


def _moves_each_step(target, applied):
    """By how often it has moved in so many steps; one that comes from a checkpoint has moved more often than this run
    shows."""
    moved = getattr(target, "n_averaged", None)
    if moved is None:
        moved = getattr(target, "last_epoch", None)
    try:
        return 2 * int(moved) >= applied  # type: ignore[arg-type]  # None is a TypeError
    except (TypeError, ValueError, RuntimeError):
        return True


class Holds:
    def __init__(self):
        self.held = {}  # (id(object), method name) -> object
        self._patched = []  # (class, method name, original)
        self._dropped = set()  # keys of `_held` that were called meanwhile
        self._own: Collection[int] = ()  # ids of the parameters whose next backward lets go of everything
        self._is_once = False  # a backward of somebody else's came first: each is held for one more call at most
        self._of_step = None  # keys of what one step calls, as its second run has shown
        self._left_out = 0  # steps that were
        self.is_stale = False  # were the gradients that there are computed before training went back?
        self._clearing: Sequence[
            Any
        ] = ()  # weak references to skipped optimizers whose step may be what clears the gradients

    def hold(self, optimizers: Collection[Optimizer]) -> None:
        """Until `release`: step() of their schedulers and update_parameters() of averaged models do nothing."""
        for target, name in _moving(optimizers):
            self._hold(target, name, None)

    def hold_for_step(self, optimizers: Collection[Optimizer], step: int) -> None:
        """For a skipped step, the `step`-th: only what moves with each step. What moves once in an epoch goes
        on, also where the epoch ends with this step."""
        for target, name in _moving(optimizers):
            key = id(target), name
            if key in self._of_step if self._of_step is not None else _moves_each_step(target, step - self._left_out):
                self._hold(target, name, None)

    def second_run_ended(self, whole: bool) -> None:
        """whole: it began where the optimizer's step before had returned, so what it has called is what one step
        calls."""
        self._of_step = set(self._dropped) if whole else None

    def hold_scaler(self, scaler: Any) -> None:
        """A held GradScaler.update keeps scale and growth tracker, and clears the per-optimizer stages, which the next
        unscale_ insists on."""
        if scaler is not None:
            self._hold(scaler, "update", lambda s: s._per_optimizer_states.clear())

    def _hold(self, target: Any, name: str, instead: Callable[[Any], Any] | None) -> None:
        self.held[id(target), name] = target
        owner = next((c for c in type(target).__mro__ if name in c.__dict__), None)
        if owner is None or any(c is owner and n == name for c, n, _ in self._patched):
            return
        original = owner.__dict__[name]

        @functools.wraps(original)
        def method(this, *args, **kwargs):
            if (id(this), name) in self.held:
                self._dropped.add((id(this), name))
                if self._is_once:
                    del self.held[id(this), name]
                return instead(this) if instead else None
            return original(this, *args, **kwargs)

        self._patched.append((owner, name, original))
        setattr(owner, name, method)

    def until_backward(self) -> None:
        """Training has gone back: gradients are of weights that are gone, up to the next backward."""
        self.is_stale = True
        _native.wake_on_backward()

    def forget(self) -> None:
        """Nothing is held any more; the methods of the classes are put back by `release`."""
        self.held.clear()

    def release(self) -> None:
        self.held.clear()
        self._dropped.clear()
        self._own, self._is_once = (), False
        while self._patched:
            owner, name, original = self._patched.pop()
            setattr(owner, name, original)

    def leave_out(self, optimizers: Sequence[Optimizer], step: int, scaler: Any) -> None:
        """For a skipped step, up to the next backward."""
        try:
            self.hold_for_step(optimizers, step)
            self.hold_scaler(scaler)
            self.release_at_next_backward(optimizers)
        except BaseException:
            self.forget()  # none of them is to miss more than this step
            raise

    def release_at_next_backward(self, optimizers: Sequence[Optimizer]) -> None:
        """The next that reaches parameters of theirs: where several losses make one iteration, it is not over
        before."""
        self._of_step = None
        self._left_out += 1
        self._clearing = [weakref.ref(o) for o in optimizers if not step_wrapper.is_torchs(type(o))]
        if self.held:
            self._own = {id(p) for o in optimizers for p in optimizer_members.parameters(o)}
        if self.held or self._clearing:
            _native.wake_on_backward()

    def _clear(self, roots: Iterable[Any], known: Known) -> None:
        """A step of the program's own may end by clearing the gradients, as SAM's does: of one that was skipped they
        stay, for the program to read. Where it has not cleared them by the next backward that would add to them,
        they go."""
        leaves, waiting = {id(leaf) for leaf in optimizer_members.leaves_of(roots)}, []
        for of in self._clearing:
            params = optimizer_members.parameters(of()) if of() is not None else []
            if params and not any(id(p) in leaves for p in params):
                waiting.append(of)
            elif any(p.grad is not None and p.grad in known for p in params):
                for p in params:
                    p.grad = None
        self._clearing = waiting
        if waiting:
            _native.wake_on_backward()

    def backward_begins(self, roots: Sequence[Any], known: Known) -> None:
        """A backward of other parameters lets go of all but the schedulers, each of which is yet to miss its one
        step."""
        self.is_stale = False
        if self._clearing:
            self._clear(roots, known)
        kept = {}
        if self._own and not any(id(leaf) in self._own for leaf in optimizer_members.leaves_of(roots)):
            kept = {
                key: it
                for key, it in self.held.items()
                if is_a(it, torch.optim.lr_scheduler.LRScheduler) and key not in self._dropped
            }
        if not kept:
            self.release()
            return
        self.held, self._is_once = kept, True
        _native.wake_on_backward()


class Draws:
    """Random numbers of skipped steps: the state after one is that of a loop that said `continue` right after
    it fetched the batch, so the next step draws the same ones. If they are what makes it bad (the last noise level of a
    diffusion), so is that step, and each after it: from the third in a row on, what a step drew stays drawn."""

    KEPT_FROM = 3  # two of a data set's bad batches in a row are nothing rare

    def __init__(self):
        self._generators = None  # as the bad window that is judged had drawn from them
        self._last = {}  # by the number of the optimizer: its last skipped step, so many in a row

    def note(self) -> None:
        self._generators = _native.take_generators()

    def left_out(self, optimizer: Optimizer, step: int) -> None:
        """Puts buffers and generators to where the batch was fetched, or buffers alone."""
        _native.put_back(batch_source.iterates_data)
        ordinal = _native.window(optimizer)["ordinal"]
        before, row = self._last.get(ordinal, (None, 0))
        row = row + 1 if before == step - 1 else 1
        if row >= self.KEPT_FROM and self._generators is not None:
            self._generators.restore()
        self._last[ordinal] = step, row


class SkippedSteps:
    """Which they were, and what they need."""

    def __init__(self, guard: Callable[..., Any], draws: Draws, holds: Holds, scaling: Scaling):
        """guard: around each part (Failures.part)."""
        self._guard, self._draws, self._holds, self._scaling = guard, draws, holds, scaling
        self.decided: list[list[Any]] = []  # [optimizer's number, step, what was raised or "", windows
        # that a GradScaler had skipped by then]

    def note(self, ordinal: int, step: int, raised: str = "") -> None:
        """A step of that optimizer is skipped. raised: what the program was given for it."""
        self.decided.append([ordinal, step, raised, self._scaling.skipped[ordinal]])

    def continue_without(self, optimizer: Optimizer, step: int) -> bool:
        """Everything continues as if the loop had said `continue` right after the batch of that step was fetched (see
        Draws). True, the verdict."""
        self._guard(self._draws.left_out, optimizer, step)
        held = sinks_of.watched_optimizers() if _native.backward_under_way() else optimizer_members.sharing(optimizer)
        self._holds.leave_out(held, step, self._scaling.scaler)
        return True
