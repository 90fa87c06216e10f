"""An alarm as it begins: the step, the sink and the state of the weights, with nothing known of the reason; and which
optimizers have weights or state that are known to be bad."""

from __future__ import annotations

import json

from .. import _native
from ..program import optimizer_members, ranks, sinks as sinks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..base.types import Alarm, Config, Optimizer, SinkKind, Tensor
    from ..program.grad_scaler import Scaling


class Damage:
    """Numbers of optimizers whose parameters or state are known to be bad."""

    def __init__(self):
        self._ordinals = set()
        self._applied = {}  # ordinal -> the first bad step that was applied, and after which nothing was put right
        self._reported = {}  # ordinal -> the alarm that is about the damage itself, and the names of what is damaged
        self._applied_in = 0  # the backward inside which a bad step was reported and applied

    def __contains__(self, ordinal: Any) -> bool:
        return ordinal in self._ordinals

    def __bool__(self) -> bool:
        return bool(self._ordinals)

    def mark(self, ordinal: int) -> None:
        self._ordinals.add(ordinal)

    def mark_reported(self, ordinal: int, alarm: Alarm, names: Iterable[str]) -> None:
        """By an alarm that is about that. names: of the parameters and the state."""
        self.mark(ordinal)
        self._reported.setdefault(ordinal, (alarm, set(names)))

    def reported_at(self, ordinal: int, name: str) -> int | None:
        """The step whose alarm is about what is bad of that name; where it was written, if that is known by now."""
        alarm, names = self._reported.get(ordinal, (None, ()))
        return alarm["step"] if alarm is not None and name in names else None

    def mark_applied(self, ordinal: int, step: int) -> None:
        """By a step that is reported and applied now."""
        self.mark(ordinal)
        self._applied.setdefault(ordinal, step)
        self._applied_in = _native.backward_under_way()

    def applied_at(self, ordinal: int) -> int | None:
        """The bad step by which they became so, where it was applied."""
        return self._applied.get(ordinal)

    def was_applied_in(self, backward: int) -> bool:
        """Was a bad step applied inside of that backward? backward: _native.backward_under_way()."""
        return backward == self._applied_in

    def clear(self, ordinal: int) -> None:
        """The script put them right, from a checkpoint perhaps."""
        self._ordinals.discard(ordinal)
        self._applied.pop(ordinal, None)
        self._reported.pop(ordinal, None)


class NewAlarms:
    """Makes them."""

    def __init__(self, config: Config, scaling: Scaling, allowed: Sequence[Tensor], damage: Damage):
        """allowed: tensors that may hold non-finite values."""
        self._config, self._scaling, self._allowed, self._damage = config, scaling, allowed, damage

    def of(self, optimizer: Optimizer, kind: SinkKind, name: str, step: int | None = None) -> Alarm:
        """At the open window of that optimizer, or at an earlier step of it. kind, name: of the sink."""
        if (scaler := optimizer_members.scaler_of(optimizer)) is not None:
            self._scaling.meet(scaler)
        window = _native.window(optimizer)
        if window["ordinal"] in self._damage and not sinks_of.bad_state(optimizer, self._allowed):
            self._damage.clear(window["ordinal"])
        at = window["step"] if step is None else step
        return self.of_class(type(optimizer).__name__, window["ordinal"], at, kind, name)

    def of_class(self, optimizer: str, ordinal: int, step: int, kind: SinkKind, name: str) -> Alarm:
        """Of an optimizer that is known by the name of its class and its number alone."""
        is_damaged, config = ordinal in self._damage, self._config
        rank, _ = ranks.world()
        return json.loads(
            _native.new_alarm(optimizer, ordinal, step, kind, name, is_damaged, rank, config.level, config.on_alarm)
        )
