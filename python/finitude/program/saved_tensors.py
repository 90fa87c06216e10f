"""What the program gives to finitude.save: statistics, and values where it asks for them, until the next optimizer
step."""

from __future__ import annotations

import os

from .. import _native
from ..base import pages
from . import optimizer_members
from .state_format import DTYPES, as_safetensors
from .tensor_stats import statistic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm, Statistics, Tensor

MOST_VALUES = 256 << 20  # bytes of the copies of one step; of a tensor beyond it only statistics are kept


class SavedTensors:
    def __init__(self, part: Callable[..., Any], keeps_values: bool):
        """part: calls what it is given, and notes an internal failure."""
        self._in_guard, self._keeps_values = part, keeps_values
        self._at_step = -1
        self.is_used = False  # has anything been given yet?
        self._statistics: dict[str, Statistics | None] = {}
        self._values: dict[str, Tensor] = {}
        self._bytes = 0

    def add(self, name: str, tensor: Tensor, gradient: bool, values: bool) -> None:
        """gradient: that of the tensor too, as `name`.grad, once backward has computed it."""
        self.is_used = True
        self._in_guard(self._keep_one, name, tensor, values)
        if gradient and tensor.requires_grad:

            def on_gradient(grad: Tensor) -> None:  # has no reference to the tensor, and returns nothing: grad stays
                self._in_guard(self._keep_one, f"{name}.grad", grad, values)

            self._in_guard(tensor.register_hook, on_gradient)

    def _keep_one(self, name, tensor, values):
        if (step := _native.counters()["steps"]) != self._at_step:
            self._at_step, self._bytes = step, 0
            self._statistics.clear()
            self._values.clear()
        tensor = tensor.detach()
        self._statistics[name] = statistic(name, tensor)
        if not (values and self._keeps_values and tensor.dtype in DTYPES and optimizer_members.has_memory(tensor)):
            return
        size = tensor.numel() * tensor.element_size()
        if self._bytes + size <= MOST_VALUES:
            self._bytes += size
            self._values[name] = tensor.clone()  # the program may write into its own

    def note(self, alarm: Alarm, directory: Callable[[], str | None]) -> None:
        """Into the alarm of the step that is being decided on. directory: makes that of the run, if it can."""
        if self._at_step != _native.counters()["steps"] or not self._statistics:
            return
        alarm["saved"] = dict(self._statistics)
        if not self._values or (folder := directory()) is None:
            return
        path = os.path.join(folder, f"saved-{alarm['step']:06d}.safetensors")
        if pages.write(path, as_safetensors(self._values)):
            alarm["saved_values"] = path
