"""Steps that a GradScaler skips: normal skips, rows of skips that are an alarm, and an unscaled loss that is bad."""

from __future__ import annotations

import math

from .. import _native
from ..program import optimizer_members, sinks as sinks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ..base.types import Context, Optimizer, Verdict
    from ..program.grad_scaler import Scaling

    class Agreement(Protocol):
        """That of session/agreement.py."""

        owed: Optimizer | None

        def ends_second_run(self, optimizer: Optimizer) -> bool: ...

        def settle(self, optimizer: Optimizer, judge: Callable[[Optimizer], Verdict]) -> Verdict: ...


class ScalerSkips:
    """What a GradScaler's steps and skips mean."""

    def __init__(
        self,
        context: Context,
        scaling: Scaling,
        leave_at: Callable[[Optimizer], None],
        judge: Callable[[Optimizer], Verdict],
        act: Callable[..., Verdict],
        agreement: Agreement,
    ):
        """leave_at: ends a second run by calling there (Units.leave_at). judge: the open window (Windows.judge). act:
        explains an alarm and carries the policy out (Decision.act)."""
        self._context, self._scaling = context, scaling
        self._leave_at, self._judge, self._act, self._agreement = leave_at, judge, act, agreement
        self._first_scale: dict[int, float | None] = {}  # by optimizer, at the first skip of the row

    def on_step(self, optimizer: Optimizer, scaler: Any, skipped: bool) -> bool | None:
        """GradScaler.step with a bad unscaled loss, which raises an alarm at once (True: the call is skipped), or a
        call that skipped its step."""
        self._leave_at(optimizer)
        scaling = self._scaling
        scaling.meet(scaler)
        if skipped:
            self.skipped_once(optimizer, at_hand=True)
            return None
        losses = [loss for loss in _native.window(optimizer)["losses"] if loss["owned"]]
        bad = {loss["serial"] for loss in losses if loss["bad"]}
        if not bad and not any(loss["answered"] and loss["serial"] in scaling.left_out for loss in losses):
            return True if self.agreed(optimizer, scaler) else None
        verdict: Verdict = True
        # A gradient that is not finite makes it skip the step, whoever lets the call through.
        scaling.begin_step(any(m >= sinks_of.BAD for m in _native.window(optimizer)["marks"]))
        try:
            if bad:
                verdict = self._judge(optimizer)
        finally:  # an error out of it ends the step too
            scaling.end_step(bad if verdict is True else ())
            if verdict is True:
                _native.count_step(optimizer)
            if verdict:
                _native.close_window(optimizer)
        return True if verdict else None

    def agreed(self, optimizer: Optimizer, scaler: Any) -> Verdict:
        """Before GradScaler.step looks at the gradients: True where the step is bad on another rank and skipped,
        "again" where it runs again. This rank has no bad loss, and what the scaler is going to find in the gradients is
        its own business."""
        if self._agreement.ends_second_run(optimizer):
            verdict = self._judge(optimizer)
        elif self._agreement.owed is optimizer:
            self._scaling.meet(scaler)
            verdict = self._agreement.settle(optimizer, lambda _: None)
        else:
            return None
        if verdict == "again":
            _native.close_window(optimizer)
        return verdict

    def skipped_once(self, optimizer: Optimizer, at_hand: bool = False) -> None:
        """Counts the skip; the scaler's search for a scale becomes an alarm where it does not end. at_hand: the window
        that was skipped is the open one."""
        scaling, target = self._scaling, self._context.target
        self._leave_at(optimizer)
        window, scaler = _native.window(optimizer), scaling.scaler
        scaling.count_skip(window["ordinal"])
        scale = float(scaler.get_scale()) if scaler is not None else None
        beyond, row = scaling.skips.on_skip(window["ordinal"], window["step"], scale)
        if row <= 1:
            self._first_scale[window["ordinal"]] = scale
        if target is not None:
            target.on_scaler_skip(optimizer, beyond)
        if not beyond:
            return
        bad = [i for i, m in enumerate(window["marks"]) if m >= sinks_of.BAD]
        name = optimizer_members.names(optimizer)[bad[0]] if bad else "gradients"
        alarm = self._context.alarms.of(optimizer, "gradient", name)
        alarm["text"] = f"GradScaler skipped {row} step{'s' if row > 1 else ''} in a row" + (
            "" if scale is None else self._scale_words(window["ordinal"], row, scale)
        )
        alarm["cause"] = {
            "class": "loss-scale-misuse",
            "confidence": "likely",
            "experiments": [],
            "text": alarm["text"],
        }
        sinks = sinks_of.of_optimizer(optimizer) if at_hand and not window["on_device"] else []
        self._act(optimizer, alarm, sinks, where="skipped", rerun_wanted=bool(sinks))

    def _scale_words(self, ordinal: int, row: int, scale: float) -> str:
        """What is said of the scale after skips in a row. An update halves it after each of them."""
        if not math.isfinite(scale):
            return (
                f" and its scale is {scale:g}, which no update makes finite: begin with a finite init_scale, or load "
                "an earlier state of the scaler"
            )
        if row > 1 and self._first_scale.get(ordinal) == scale:
            return (
                f" and its scale is still {scale:g}: a skip lowers it only where scaler.update() is called after "
                "scaler.step()"
            )
        return f" and its scale is {scale:g} by now: the gradients are not finite at any scale so far"
