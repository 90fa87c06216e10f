"""What nearly every part of a run needs."""

from __future__ import annotations

import dataclasses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import AnyTarget, Config
    from ..report.console import Console
    from ..report.document import Report
    from ..report.new_alarms import Damage, NewAlarms


@dataclasses.dataclass(frozen=True)
class Context:
    """Made before the parts, and knows none of them."""

    config: Config
    report: Report
    console: Console
    part: Callable[..., Any]  # the guard around each part (Failures.part)
    target: AnyTarget | None  # in a second process, the step that it explains
    alarms: NewAlarms
    damage: Damage
