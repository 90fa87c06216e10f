"""Steps on a GPU whose verdict the host did not wait for: reported when it arrives, at a later step or at the end."""

from __future__ import annotations

import math

import torch

from .. import _native
from ..base import programs
from ..base.plain_json import number
from ..base.unseen import unseen
from ..errors import NonFiniteError
from ..program import optimizer_members, ranks, sinks as sinks_of
from ..report import clipped_away, console, growth, incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import BadTensor, Optimizer, Parts, Verdict

# Their fused kernels leave a step out where `found_inf` is 1. A subclass may not.
_FLAGGED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
LIMIT_S = 60  # how long the end of the program waits for the GPU


def open_library(path: str) -> str:
    """Why gradients on a GPU cannot be scanned, "" if they can or there is no GPU to have any."""
    if torch.version.cuda is None or _native.has_device_library():
        return ""
    why = _native.open_device_library(path, "cuda")
    return f"gradients on the GPU ({why})" if why else ""


class Deferred:
    """The verdicts that are still under way."""

    def __init__(self, session: Parts):
        self._session = session
        self._unwatched = open_library(programs.path_of(programs.DEVICE_LIBRARY))

    @unseen
    def register(self, optimizer: Optimizer) -> None:
        """Has the parameters on a GPU watched, or notes why not."""
        session = self._session
        kind = type(optimizer)
        if ranks.several() and session.config.on_alarm in ("skip", "rollback"):
            _native.set_device_policy(
                "stop"
            )  # a loss that is bad on one rank only must not have that rank leave the step out
        _native.set_gradient_streaming(session.config.stream_gradients, ranks.several())
        _native.register_device(optimizer, kind in _FLAGGED, kind is torch.optim.SGD)
        if not _native.has_device_library() and any(
            p.device.type == "cuda" for p in optimizer_members.parameters(optimizer)
        ):
            session.report.add_not_watched(self._unwatched or "gradients on the GPU")

    def verdict_of(self, optimizer: Optimizer | None, late: dict[str, Any]) -> Verdict:
        """One step of before; `optimizer` is None where it is gone. May raise NonFiniteError: out of the call that has
        just begun, which is not applied either."""
        session = self._session
        if late["norm_overflow"]:
            clipped_away.advise_row(session.report, optimizer, late["step"])
        if late["kind"] == "scaler-skip":
            if optimizer is not None:
                session.scaler_skips.skipped_once(optimizer)
            return None
        if late["kind"] != "alarm":
            return None
        names = optimizer_members.names(optimizer) if optimizer is not None else []
        sizes = [p.numel() for p in optimizer_members.parameters(optimizer)] if optimizer is not None else []
        bad: list[BadTensor] = [
            {
                "name": names[i] if names else f"parameter {i}",
                "nan": nan,
                "inf": inf,
                "numel": sizes[i] if sizes else nan + inf,
            }
            for i, nan, inf in late["gradients"]
        ]
        is_loss = late["sink"] == "loss"
        name = "loss" if is_loss else bad[0]["name"] if bad else "gradients"
        if optimizer is None:
            alarm = session.alarms.of_class(late["optimizer"], late["ordinal"], late["step"], late["sink"], name)
        else:
            alarm = session.alarms.of(optimizer, late["sink"], name, step=late["step"])
        alarm["harmless"], alarm["micro_batch"] = late["harmless"], late["micro_batch"]
        alarm["loss"] = number(late["loss"])
        alarm["gradients"] = {"bad": bad, "clean": max(0, len(names) - len(bad))}
        value = _native.loss_text(math.isnan(late["loss"]), False) if is_loss else _native.gradient_text(name)
        alarm["text"] = value + (
            growth.with_bad_loss(session.started_with, optimizer) if alarm["harmless"] and optimizer is not None else ""
        )
        session.acting.begin(alarm, written=not late["left_out"])
        session.report.begin(alarm)
        if session.second_runs.left.take(alarm["sink"]["kind"], alarm["harmless"], session.allowed.is_any, False):
            # The program is beyond that step by now: only a second process comes to it again.
            session.restart.run(alarm, incident.late_fingerprint(late["loss"], late["gradients"]), "late")
        ordinal = alarm.pop("optimizer_ordinal")
        session.part(_native.note_event_in_store, ordinal, alarm["step"], "alarm")
        session.report.add_alarm(alarm)
        action = session.policy.on_alarm(ordinal, alarm["step"], alarm["harmless"])
        session.acting.note_action(action)
        parameters = optimizer_members.parameters(optimizer) if optimizer is not None else []
        session.known.note(
            tensor for _, _, tensor in (sinks_of.of_optimizer(optimizer) if optimizer is not None else ())
        )
        session.known.note_frames()
        action = ranks.may_do_alone(
            action, alarm, lambda: ranks.seen_by_all([parameters[i] for i, *_ in late["gradients"] if parameters])
        )
        ends = action in ("stop", "raise")
        alarm["action"] = _native.action_text(action if ends else "skip", applied=not late["left_out"])
        if not late["left_out"] and not alarm["harmless"]:
            alarm["weights"] = "damaged"
            session.damage.mark(ordinal)
        session.console.print_alarm(alarm)
        if ends and not session.ending.has_begun:
            session.holds.release()
            raise NonFiniteError(console.message(session.report, alarm), report=alarm)
        return None

    def finish(self) -> None:
        """The program ends: the verdicts that are still under way, and what was not watched."""
        session = self._session
        session.ending.begin()
        if left := _native.finish_late(LIMIT_S):
            session.report.add_not_watched(
                f"the verdicts of the last {left} steps on the GPU, which did not come within {LIMIT_S} s"
            )
        if trouble := _native.device_trouble():
            session.report.add_not_watched(trouble)
