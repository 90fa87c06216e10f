"""Keeps schedulers and averaged models from moving for a step that was not applied."""

from . import _native, discover


class Holds:
    def __init__(self):
        self._held = []
        self.names = []

    def hold(self, optimizer):
        """Until `release`: their step()/update_parameters() do nothing."""
        for target, name in [(s, "step") for s in discover.schedulers(optimizer)] + [
            (m, "update_parameters") for m in discover.averaged_models(optimizer)
        ]:
            if any(t is target for t, _, _ in self._held):
                continue
            had = target.__dict__.get(name)
            target.__dict__[name] = lambda *args, **kwargs: None
            self._held.append((target, name, had))
            self.names.append(type(target).__name__)

    def hold_scaler(self, scaler):
        """A held GradScaler.update keeps scale and growth tracker, and clears the per-optimizer stages, which the next
        unscale_ insists on."""
        if scaler is None or any(t is scaler for t, _, _ in self._held):
            return
        had = scaler.__dict__.get("update")
        scaler.__dict__["update"] = lambda new_scale=None: scaler._per_optimizer_states.clear()
        self._held.append((scaler, "update", had))
        self.names.append(type(scaler).__name__)

    def release(self):
        while self._held:
            target, name, had = self._held.pop()
            if had is None:
                target.__dict__.pop(name, None)
            else:
                target.__dict__[name] = had
        self.names = []

    def release_at_next_backward(self):
        if self._held:
            _native.wake_on_backward()

    def __bool__(self):
        return bool(self._held)
