"""The GradScaler of the program: its scale, and which steps it has skipped."""

from __future__ import annotations

import collections

from .. import _native
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Optimizer


class Scaling:
    """The GradScaler of the program, and what it has skipped."""

    def __init__(self):
        self.scaler: Any = None
        self.decides = False  # it is going to skip the step that is being judged
        self.skips = _native.ScalerSkips()
        self.skipped = collections.Counter()  # windows that it skipped, by optimizer
        self.left_out = set()  # serials of the bad losses for which its step was skipped

    def look_for(self, optimizer: Optimizer) -> None:
        """Is there one of this optimizer? Else the last one stays."""
        self.scaler = optimizer_members.scaler_of(optimizer) or self.scaler
