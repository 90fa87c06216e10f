"""--capsule-of-step N: the capsule of one step that was chosen, healthy or not known to be bad. Its operators are
recorded as it runs; it is written before the step is applied, and the program continues."""

from __future__ import annotations

from .. import _native
from ..base import working_folder
from ..base.config import keeps_step
from ..base.say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.types import Config, Optimizer
    from ..capsules.capsule import Capsules
    from ..report.document import Report


class ChosenStep:
    """Of the first optimizer. The engine calls as the step before it is applied, and at its own end."""

    def __init__(self, config: Config, report: Report, capsules: Capsules, explains: bool, part: Callable[..., object]):
        """explains: this process explains a step of another one, and keeps none. part: calls its argument, and notes an
        internal failure."""
        self._config, self._report, self._capsules, self._in_guard = config, report, capsules, part
        self._is_wanted = config.capsule_of_step > 0 and keeps_step(config) and not explains
        self._is_armed = False
        self.is_recorded = False  # its recording has begun, and perhaps ended
        self._unhook: Callable[[], None] = lambda: None

    def arm(self) -> None:
        """The program has an optimizer."""
        if not self._is_wanted or self._is_armed or not self._capsules.wanted():
            return
        self._is_armed = True
        step = self._config.capsule_of_step
        _native.arm_at(0, step, step, False)

    def on_armed(self, optimizer: Optimizer | None) -> None:
        """The step before is about to be applied; what the optimizer computes from here on belongs to that."""
        if self._is_armed and optimizer is not None and not self.is_recorded:
            self._in_guard(self._await_end_of_step, optimizer)

    def _await_end_of_step(self, optimizer):
        hook = optimizer.register_step_post_hook(lambda *_: self._begin_recording())
        self._unhook = hook.remove

    def _begin_recording(self) -> None:
        if self.is_recorded:  # the hook stays: torch iterates over them while it is called
            return
        self.is_recorded = True
        _native.trace_clear()
        _native.trace_start()
        self._capsules.begin()

    def ends(self, optimizer: Optimizer) -> None:
        """The gradients of the step are there, and it is about to be judged. Only where it is recorded."""
        if not self._is_wanted:
            return
        window = _native.window(optimizer)
        if window["ordinal"] != 0 or window["step"] != self._config.capsule_of_step:
            return
        self._is_wanted = False
        self._unhook()
        try:
            if _native.window_verdict(optimizer, False)["kind"] == "nothing":
                self._in_guard(self._leave_capsule, optimizer, window["step"])
            else:
                self._report.add_not_watched(
                    f"the capsule of step {window['step']} (--capsule-of-step): it is a bad step, which leaves its own"
                )
        finally:
            _native.trace_stop()
            _native.trace_clear()
            _native.tape_clear()

    def _leave_capsule(self, optimizer, step):
        self._capsules.stop(optimizer)
        if folder := self._capsules.write_healthy(step, type(optimizer).__name__):
            if not self._config.quiet:
                say(f"finitude: capsule of step {step}: {working_folder.relative(folder)}\n")

    def end(self) -> None:
        """The program is over."""
        if self._is_wanted:
            names = "the program came to no such step" if self._capsules.wanted() else "--capsules 0 writes none"
            self._report.add_not_watched(
                f"the capsule of step {self._config.capsule_of_step} (--capsule-of-step): {names}"
            )
