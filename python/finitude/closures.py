"""Optimizers that are given a closure: backward runs inside `step`, so the decision is taken when the closure returns."""

import weakref

import torch

from . import _cold, _native, discover

_after_hooks = weakref.WeakKeyDictionary()


def wrap(session, optimizer, args, kwargs):
    """(args, kwargs) with the closure replaced. One `step` is one step however often the closure is evaluated."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    many = isinstance(optimizer, torch.optim.LBFGS)
    guard = _Searching(session, optimizer, closure) if many else _Once(optimizer, closure)
    if "closure" in kwargs:
        return args, {**kwargs, "closure": guard}
    return (args[0], guard, *args[2:]), kwargs


def _copy(value):
    """Of one value of LBFGS's state. The tensors in its lists are never written again, the others are."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return list(value) if isinstance(value, list) else value


class _Once:
    """Evaluated once, before the update: the gate shuts behind it."""

    def __init__(self, optimizer, closure):
        self.optimizer, self.closure = optimizer, closure

    def __call__(self):
        result = self.closure()
        verdict = _cold.on_window(self.optimizer) if _native.judge(self.optimizer) else None
        if verdict:
            if verdict is True:
                _native.count_step(self.optimizer)
            _native.close_window(self.optimizer)
            _native.veto(self.optimizer)
        else:
            _native.commit(self.optimizer, True)
        return result


class _Searching:
    """Line searches try points that may overflow; what counts is the loss returned, the gradients and parameters at the end."""

    def __init__(self, session, optimizer, closure):
        self.session, self.optimizer, self.closure = session, optimizer, closure
        self.params = discover.parameters(optimizer)
        self.before = [p.detach().clone() for p in self.params]
        self.state = {p: {key: _copy(value) for key, value in s.items()} for p, s in optimizer.state.items()}
        self.first = None
        # torch walks over the hooks while ours runs, so the last one is taken out only now.
        if optimizer in _after_hooks:
            _after_hooks.pop(optimizer).remove()
        _after_hooks[optimizer] = optimizer.register_step_post_hook(self._after)

    def __call__(self):
        _native.enter_closure()
        try:
            result = self.closure()
        finally:
            _native.leave_closure()
        if self.first is None:
            self.first = result
        return result

    def _after(self, optimizer, args, kwargs):
        _cold.on_searched(self)

    def judge(self):
        optimizer = self.optimizer
        loss_bad = isinstance(self.first, torch.Tensor) and not _native.is_finite(self.first.detach())
        params_bad = not all(_native.is_finite(p.detach()) for p in self.params)
        if not loss_bad and not params_bad:
            _native.commit(optimizer, False)
            return
        names = discover.names(optimizer)
        sinks = [("gradient", n, p.grad) for n, p in zip(names, self.params)
                 if p.grad is not None and not _native.is_finite(p.grad)]
        if loss_bad:
            sinks.insert(0, ("loss", "loss", self.first.detach()))
        sinks += [("parameter", n, p.detach().clone()) for n, p in zip(names, self.params) if not _native.is_finite(p.detach())]
        session = self.session
        if session.target is not None:
            session.target.on_searched(session, optimizer, sinks)
        kind, name = ("loss", "loss") if loss_bad else next((k, n) for k, n, _ in sinks if k == "parameter")
        alarm = session.new_alarm(optimizer, kind, name)
        alarm["text"] = "the loss that the closure returned is not finite" if loss_bad else \
            f"the line search left {name} with values that are not finite"
        if session.config.on_alarm != "warn":
            with torch.no_grad():
                for p, old in zip(self.params, self.before):
                    p.copy_(old)
            optimizer.state.clear()
            optimizer.state.update(self.state)
        _native.count_step(optimizer)
        _native.close_window(optimizer)
        session.act(optimizer, alarm, sinks, where="search", undone=session.config.on_alarm != "warn")
