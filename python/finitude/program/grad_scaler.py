"""What a GradScaler leaves out: skips that are its normal work, those that are not, and an unscaled loss that is
bad."""

from __future__ import annotations

import collections

from .. import _native
from . import optimizer_members, sinks as sinks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Optimizer, Session, Verdict

BAD = 2  # GradMark::State: at least infinite


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


def on_step(session: Session, optimizer: Optimizer, scaler: Any, skipped: bool) -> bool | None:
    """GradScaler.step with a bad unscaled loss, which alarms at once (True: leave the call out), or that skipped."""
    scaling = session.scaling
    scaling.scaler = scaler
    if skipped:
        skipped_once(session, optimizer, at_hand=True)
        return None
    losses = [loss for loss in _native.window(optimizer)["losses"] if loss["owned"]]
    bad = {loss["serial"] for loss in losses if loss["bad"]}
    if not bad and not any(loss["answered"] and loss["serial"] in scaling.left_out for loss in losses):
        return None
    verdict: Verdict = True
    # A gradient that is not finite makes it skip the step, whoever lets the call through.
    scaling.decides = any(m >= BAD for m in _native.window(optimizer)["marks"])
    try:
        if bad:
            verdict = session.on_window(optimizer)
    finally:  # an error out of it ends the step too
        scaling.decides = False
        if verdict is True:
            scaling.left_out |= bad
            _native.count_step(optimizer)
        if verdict:
            _native.close_window(optimizer)
    return True if verdict else None


def skipped_once(session: Session, optimizer: Optimizer, at_hand: bool = False) -> None:
    """Counts it; the scaler's search for a scale becomes an alarm where it does not end. at_hand: the window that was
    skipped is the one that is open."""
    window, scaler = _native.window(optimizer), session.scaling.scaler
    session.scaling.skipped[window["ordinal"]] += 1
    scale = float(scaler.get_scale()) if scaler is not None else None
    beyond, row = session.scaling.skips.on_skip(window["ordinal"], window["step"], scale)
    if session.target is not None:
        session.target.on_scaler_skip(optimizer, beyond)
    if not beyond:
        return
    bad = [i for i, m in enumerate(window["marks"]) if m >= BAD]
    name = optimizer_members.names(optimizer)[bad[0]] if bad else "gradients"
    alarm = session.new_alarm(optimizer, "gradient", name)
    alarm["text"] = f"GradScaler skipped {row} step{'s' if row > 1 else ''} in a row" + (
        f" and its scale is down to {scale:g}: the gradients overflow at every scale so far"
        if scale is not None
        else ""
    )
    alarm["cause"] = {"class": "loss-scale-misuse", "confidence": "likely", "experiments": [], "text": alarm["text"]}
    sinks = sinks_of.of_optimizer(optimizer) if at_hand and not window["on_device"] else []
    session.act(optimizer, alarm, sinks, where="skipped", rerun_wanted=bool(sinks))
