"""Optimizers that are given a closure: backward runs inside `step`, so the decision is taken when the closure
returns."""

from __future__ import annotations

import weakref

import torch

from .. import _native
from ..base.kinds import is_a
from ..errors import NonFiniteError, Reached
from ..program import optimizer_members, sinks as sinks_of, step_wrapper
from . import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Context, Optimizer, Sink, SinkKind, Verdict
    from .step_calls import Units

_evaluates_first = weakref.WeakKeyDictionary()  # optimizer -> its step evaluates the closure once, and before it writes
_after_hooks = weakref.WeakKeyDictionary()


def _copy(value):
    """Of one value of LBFGS's state. The tensors in its lists are never written again, the others are."""
    if is_a(value, torch.Tensor):
        return value.detach().clone()
    return list(value) if isinstance(value, list) else value


def _is_vetoed(optimizer):
    """Judges the window that the closure has filled; a step that is not to be goes no further. May raise
    NonFiniteError."""
    session = native_callbacks.session
    verdict: Any = True
    is_asked = False
    try:
        is_asked = session is not None and session.part(session.agreement.begin, optimizer)
        verdict = native_callbacks.on_window(optimizer) if _native.judge(optimizer) or is_asked else None
    except Reached:  # a second run, which wants to look at this window
        verdict = None
        raise
    finally:  # an error out of it ends the step too
        if verdict is True:
            _native.count_step(optimizer)
        if verdict:
            _native.close_window(optimizer)
        if is_asked:
            session.part(session.agreement.end_step)
    return bool(verdict)


class _Once:
    """Evaluated once, before the update: the gate shuts behind it."""

    def __init__(self, units, optimizer, closure):
        self.units, self.optimizer, self.closure = units, optimizer, closure

    def __call__(self):
        result = self.units.call(self.closure)
        if _is_vetoed(self.optimizer):
            _native.take_rest(self.optimizer)
        else:
            _native.commit(self.optimizer, True)
        return result


class StepLeft(BaseException):
    """Out of the closure of a vetoed step and out of that step, to its caller in Finitude. Not an Exception: steps
    catch those."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss


class _Unknown:
    """Of a class outside torch.optim: what its step does before, between and after evaluations only running it shows.

    The first evaluation is judged like any other backward; those that follow are trials of the step, which is judged by
    what it wrote. A vetoed step is left by an exception. Before the first step a copy is taken, to undo what the step
    wrote before it evaluated the closure; a class that wrote nothing by then needs no copy from then on.
    """

    def __init__(self, units, undoes, optimizer, closure):
        self.units, self.optimizer, self.closure, self.times = units, optimizer, closure, 0
        known = _evaluates_first.get(optimizer)
        self.learns = known is None
        self.copied = (not known or undoes) and _native.copy_before_step(optimizer)

    def __call__(self):
        self.times += 1
        optimizer = self.optimizer
        if self.times > 1:
            _evaluates_first[optimizer] = False
            _native.enter_closure()
            try:
                return self.units.isolated(self.closure)
            finally:
                _native.leave_closure()
        if self.learns:
            _evaluates_first[optimizer] = self.copied and not _native.wrote_since_copy(optimizer)
        loss = self.units.call(self.closure)
        try:
            vetoed = _is_vetoed(optimizer)
        except NonFiniteError:
            _native.undo_step(optimizer)
            raise
        if not vetoed:
            return loss
        _native.leave_rest(optimizer)
        raise StepLeft(loss)


class _Searching:
    """Line searches try points that may overflow; what counts is the loss returned, the gradients and parameters at the
    end."""

    def __init__(self, units, optimizer, closure):
        self.units, self.optimizer, self.closure = units, optimizer, closure
        self.params = optimizer_members.parameters(optimizer)
        self.results = [p for p in self.params if sinks_of.is_result(optimizer, p)]
        self.before = [p.detach().clone() for p in self.params]
        self.state = {p: {key: _copy(value) for key, value in s.items()} for p, s in optimizer.state.items()}
        self.first: Any = None
        # torch walks over the hooks while ours runs, so the last one is taken out only now.
        if optimizer in _after_hooks:
            _after_hooks.pop(optimizer).remove()
        _after_hooks[optimizer] = optimizer.register_step_post_hook(self._after)

    def __call__(self):
        _native.enter_closure()
        try:
            # Points further along the line are other parameters: only the first evaluation can be called again.
            result = self.units.call(self.closure) if self.first is None else self.units.isolated(self.closure)
        finally:
            _native.leave_closure()
        if self.first is None:
            self.first = result
        return result

    def _after(self, optimizer, args, kwargs):
        native_callbacks.on_searched(self)


class Closures:
    """Puts what judges a step in the place of the closure that it is given."""

    def __init__(self, context: Context, units: Units, act: Callable[..., Verdict]):
        """act: explains an alarm and carries the policy out (Decision.act)."""
        self._context, self._units, self._act = context, units, act

    def wrap(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with the closure replaced. One `step` is one step however often the closure is evaluated."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not step_wrapper.is_torchs(type(optimizer)):
            stand_in: Any = _Unknown(self._units, self._context.config.undo_mb > 0, optimizer, closure)
        elif is_a(optimizer, torch.optim.LBFGS):  # the one class of torch.optim that evaluates it several times
            stand_in = _Searching(self._units, optimizer, closure)
        else:
            stand_in = _Once(self._units, optimizer, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": stand_in}
        return (args[0], stand_in, *args[2:]), kwargs

    def judge(self, search: _Searching) -> None:
        """A step that searched along a line is over."""
        context, optimizer = self._context, search.optimizer
        loss_bad = is_a(search.first, torch.Tensor) and not _native.is_finite(search.first.detach())
        params_bad = not all(_native.is_finite(p.detach()) for p in search.results)
        if not loss_bad and not params_bad:
            target = context.target
            window = _native.window(optimizer) if target is not None else None
            _native.commit(optimizer, False)
            if target is not None and window is not None:
                target.on_searched_well(optimizer, window, search.before)
            return
        names = optimizer_members.names(optimizer)
        sinks: list[Sink] = [
            ("gradient", n, p.grad)
            for n, p in zip(names, search.params)
            if p.grad is not None and not _native.is_finite(p.grad)
        ]
        if loss_bad:
            sinks.insert(0, ("loss", "loss", search.first.detach()))
        sinks += [
            ("parameter", n, p.detach().clone())
            for n, p in zip(names, search.params)
            if not _native.is_finite(p.detach()) and any(p is r for r in search.results)
        ]
        if context.target is not None:
            context.target.on_searched(optimizer, sinks, search.before)
        kind: SinkKind = "loss" if loss_bad else "parameter"
        name = "loss" if loss_bad else next(n for k, n, _ in sinks if k == "parameter")
        alarm = context.alarms.of(optimizer, kind, name)
        alarm["text"] = (
            "the loss that the closure returned is not finite"
            if loss_bad
            else f"the iterations of this step left {name} with values that are not finite"
        )
        if context.config.on_alarm != "warn":
            with torch.no_grad():
                for p, old in zip(search.params, search.before):
                    p.copy_(old)
            optimizer.state.clear()
            optimizer.state.update(search.state)
        _native.count_step(optimizer)
        _native.close_window(optimizer)
        self._act(
            optimizer,
            alarm,
            sinks,
            where="search",
            undone=context.config.on_alarm != "warn",
            loss=search.first if loss_bad else None,
        )
