"""Keeps schedulers, averaged models and scalers from moving for a step that was not applied.

Held by class, not by instance: an attribute on a scheduler would end up in its state_dict.
"""

import functools

from . import _native, discover


class Holds:
    def __init__(self):
        self._held = {}        # (id(object), method name) -> object
        self._patched = []     # (class, method name, original)

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
                return instead(this) if instead else None
            return original(this, *args, **kwargs)

        self._patched.append((owner, name, original))
        setattr(owner, name, method)

    def release(self):
        self._held.clear()
        while self._patched:
            owner, name, original = self._patched.pop()
            setattr(owner, name, original)

    def release_at_next_backward(self):
        if self._held:
            _native.wake_on_backward()
