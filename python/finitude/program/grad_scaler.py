"""The GradScaler of the program: its scale, and which steps it has skipped."""

from __future__ import annotations

import collections

import torch.amp.grad_scaler

from .. import _native
from ..base.unseen import unseen
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


_FILE = torch.amp.grad_scaler.__file__


def complaint(error: BaseException | None) -> str:
    """The first line of an exception that a GradScaler itself raised, after ": ", as "step() has already been called
    since the last update()."; "" of any other."""
    traceback = error.__traceback__ if isinstance(error, (RuntimeError, AssertionError, ValueError)) else None
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or traceback.tb_frame.f_code.co_filename != _FILE:
        return ""
    lines = str(error).splitlines()
    return f": {lines[0]}" if lines else ""


@unseen
def left_scale() -> float:
    """The scale of a GradScaler that multiplied a loss while its `step`, `unscale_` and `update` never came: what an
    optimizer takes is still multiplied by it. 0.0: there is none. Reads two numbers, which may wait for a device."""
    for scaler in optimizer_members.instances(torch.amp.GradScaler):
        scale, since = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
        if not scaler._enabled or scale is None or since is None or scaler._per_optimizer_states:
            continue
        if int(since) == 0 and float(scale) == scaler._init_scale:  # an update changes one of the two
            return float(scale)
    return 0.0


class Scaling:
    """The GradScaler of the program, and what it has skipped."""

    def __init__(self):
        self.scaler: Any = None
        self.decides = False  # it is going to skip the step that is being judged
        self.skips = _native.ScalerSkips()
        self.skipped = collections.Counter()  # windows that it skipped, by optimizer
        self.left_out = set()  # serials of the bad losses for which its step was skipped

    def meet(self, scaler: Any) -> None:
        """The program steps with that one."""
        self.scaler = scaler

    def begin_step(self, decides: bool) -> None:
        """It is asked about a step. decides: it is going to skip it, whoever lets the call through."""
        self.decides = decides

    def end_step(self, left_out: Iterable[int]) -> None:
        """left_out: serials of the bad losses of a step that is skipped."""
        self.decides = False
        self.left_out.update(left_out)

    def count_skip(self, ordinal: int) -> None:
        """A window of that optimizer was skipped."""
        self.skipped[ordinal] += 1
