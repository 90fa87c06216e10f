"""An alarm as it begins: the step, the sink and the state of the weights, with nothing known of the reason."""

from __future__ import annotations

from .. import _native
from ..program import nonfinite_state
from . import incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Alarm, Config, Optimizer, SinkKind, Tensor, Weights
    from ..program.grad_scaler import Scaling
    from .damage import Damage


class NewAlarms:
    """Makes them."""

    def __init__(self, config: Config, scaling: Scaling, allowed: Sequence[Tensor], damage: Damage):
        """allowed: tensors that may hold non-finite values."""
        self._config, self._scaling, self._allowed, self._damage = config, scaling, allowed, damage

    def of(self, optimizer: Optimizer, kind: SinkKind, name: str, step: int | None = None) -> Alarm:
        """At the open window of that optimizer, or at an earlier step of it. kind, name: of the sink."""
        self._scaling.look_for(optimizer)
        window = _native.window(optimizer)
        if window["ordinal"] in self._damage and not nonfinite_state.sinks(optimizer, self._allowed):
            self._damage.clear(window["ordinal"])
        at = window["step"] if step is None else step
        return self.of_class(type(optimizer).__name__, window["ordinal"], at, kind, name)

    def of_class(self, optimizer: str, ordinal: int, step: int, kind: SinkKind, name: str) -> Alarm:
        """Of an optimizer that is known by the name of its class and its number alone."""
        weights: Weights = "damaged" if ordinal in self._damage else "clean"
        return incident.new_alarm(self._config, optimizer, ordinal, step, (kind, name), weights)
