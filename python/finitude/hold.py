"""Keeps schedulers, averaged models and scalers from moving for a step that was not applied.

Held by class, not by instance: an attribute on a scheduler would end up in its state_dict.
"""

import functools

import torch

from . import _native, discover


class Holds:
    def __init__(self):
        self._held = {}        # (id(object), method name) -> object
        self._patched = []     # (class, method name, original)
        self._dropped = set()  # keys of `_held` that were called meanwhile
        self._own = ()         # ids of the parameters whose next backward lets go of everything
        self._is_once = False  # a backward of somebody else's came first: each is held for one more call at most

    def hold(self, optimizers):
        """Until `release`: step() of their schedulers and update_parameters() of averaged models do nothing."""
        for scheduler in discover.schedulers(optimizers):
            self._hold(scheduler, "step", None)
        for averaged in discover.averaged_models():
            self._hold(averaged, "update_parameters", None)

    def hold_scaler(self, scaler):
        """A held GradScaler.update keeps scale and growth tracker, and clears the per-optimizer stages, which the next
        unscale_ insists on."""
        if scaler is not None:
            self._hold(scaler, "update", lambda s: s._per_optimizer_states.clear())

    def _hold(self, target, name, instead):
        self._held[id(target), name] = target
        owner = next((c for c in type(target).__mro__ if name in c.__dict__), None)
        if owner is None or any(c is owner and n == name for c, n, _ in self._patched):
            return
        original = owner.__dict__[name]

        @functools.wraps(original)
        def method(this, *args, **kwargs):
            if (id(this), name) in self._held:
                self._dropped.add((id(this), name))
                if self._is_once:
                    del self._held[id(this), name]
                return instead(this) if instead else None
            return original(this, *args, **kwargs)

        self._patched.append((owner, name, original))
        setattr(owner, name, method)

    def release(self):
        self._held.clear()
        self._dropped.clear()
        self._own, self._is_once = (), False
        while self._patched:
            owner, name, original = self._patched.pop()
            setattr(owner, name, original)

    def release_at_next_backward(self, optimizers):
        """The next that reaches parameters of theirs: where several losses make one iteration, it is not over before."""
        if self._held:
            self._own = {id(p) for o in optimizers for p in discover.parameters(o)}
            _native.wake_on_backward()

    def backward_begins(self, roots):
        """A backward of other parameters lets go of all but the schedulers, each of which is yet to miss its one step."""
        kept = {}
        if self._own and not any(id(leaf) in self._own for leaf in discover.leaves_of(roots)):
            kept = {key: it for key, it in self._held.items()
                    if isinstance(it, torch.optim.lr_scheduler.LRScheduler) and key not in self._dropped}
        if not kept:
            self.release()
            return
        self._held, self._is_once = kept, True
        _native.wake_on_backward()
