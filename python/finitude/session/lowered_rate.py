"""--then lower-rate: the learning rate of an optimizer whose steps are bad is lowered, and the bad step is skipped."""

from __future__ import annotations

from .. import _native
from ..base.say import say
from ..program import state_copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..base.types import Alarm, Config, Optimizer
    from ..report.document import Report


class LoweredRate:
    def __init__(self, config: Config, report: Report):
        self._config, self._report = config, report
        self.factors: dict[int, float] = {}  # by ordinal of the optimizer: of the rate that the program would have

    def lower(self, optimizer: Optimizer, alarm: Alarm, ordinal: int) -> None:
        """Of all groups, and what schedulers compute later rates from. Nothing brings it back."""
        factor = self._config.lower_rate_factor
        state_copy.scale_rates([optimizer], factor)
        self.factors[ordinal] = now = self.factors.get(ordinal, 1.0) * factor
        text = f"the step was skipped, and the learning rate is {factor:g} times what it was"
        if now != factor:
            text += f" ({now:g} times in all)"
        alarm["action"] = text
        self._report.note_lowered_rate(alarm, factor)
        say(f"finitude: step {alarm['step']}: {text}\n")

    def keep(self, optimizers: Iterable[Optimizer], before: Mapping[int, float]) -> None:
        """Training went back to a copy from when the factors were those of `before`: lowered rates stay so."""
        for optimizer in optimizers:
            ordinal = _native.window(optimizer)["ordinal"]
            since = self.factors.get(ordinal, 1.0) / before.get(ordinal, 1.0)
            if since != 1:
                state_copy.scale_rates([optimizer], since)
