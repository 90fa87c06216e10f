"""A window has been found that holds something not finite, or that the engine wants a second look at: what is it?"""

from __future__ import annotations

import math

from .. import _native
from ..alarms import script_handled
from ..program import batch_source, optimizer_members, sharding, sinks as sinks_of
from ..program.tensor_stats import count_text
from ..report import clipped_away, growth, incident
from ..rerun import rewind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Optimizer, Parts, Sink, Verdict, Window, WindowVerdict


class Windows:
    """Judges what the engine stops at."""

    def __init__(self, session: Parts):
        self._session = session

    def judge(self, optimizer: Optimizer) -> Verdict:
        """Something in the window before `step` is not finite, here or on another rank. True: veto. None: apply. May
        raise NonFiniteError."""
        agreement = self._session.agreement
        return self._own(optimizer) if agreement.owed is None else agreement.settle(optimizer, self._own)

    def _own(self, optimizer: Optimizer) -> Verdict:
        session = self._session
        if session.units.again is not None:
            session.units.leave_at(optimizer)
        checked = _native.dropped_checks()
        if session.target is not None:
            return session.target.on_window(optimizer, checked)
        if session.second_run.pending is not None:
            passed = rewind.passes(session.second_run.pending, optimizer)
            if passed == "left out":
                _native.put_back(batch_source.iterates_data)
            return (
                {"applied": None, "left out": True}[passed] if passed else session.decision.second_run_ended(optimizer)
            )
        session.part(session.draws.note)
        if session.chosen_step.is_recorded:
            session.part(session.chosen_step.ends, optimizer)
        window = _native.window(optimizer)
        if session.initial_state.is_any and (known := session.initial_state.verdict_at(optimizer, window["step"])):
            return known[0]
        verdict = _native.window_verdict(optimizer, False)
        if checked:
            session.part(session.dropping.note_checked, checked)
        if norms := session.part(_native.take_norm_drops, optimizer):
            session.part(session.dropping.note, window["step"], script_handled.NORM, norms)
        if (verdict["kind"] == "alarm" or window["written_bad"]) and window["ordinal"] not in session.damage:
            if found := sinks_of.bad_state(optimizer, session.allowed.tensors):
                return session.weights.found_late(optimizer, window, found)
        if verdict["norm_overflow"]:
            clipped_away.advise_row(session.report, optimizer, window["step"], window)
        if verdict["kind"] != "alarm" and _native.buffers_turned_nan():
            if found := sinks_of.bad_buffers(optimizer):
                alarm = session.alarms.of(optimizer, "buffer", found[0][1])
                alarm["text"] = f"the buffer {found[0][1]} took in {count_text(found[0][2])}" + _finite(window)
                return session.decision.act(optimizer, alarm, found)
        if verdict["kind"] == "nothing":
            if window["vanished"]:
                session.weights.look_for_swallowed(optimizer, window)
            return (
                "again" if checked and not window["on_device"] and session.dropping.begin(optimizer, window) else None
            )
        if verdict["kind"] == "handled-by-script":
            session.dropping.note(window["step"], script_handled.GRADIENTS, verdict["times"])
            if not window["on_device"] and session.dropping.begin(optimizer, window):
                return "again"
            _native.consume_losses(optimizer)
            return None
        return self._bad(optimizer, window, verdict)

    def _bad(self, optimizer: Optimizer, window: Window, verdict: WindowVerdict) -> Verdict:
        session = self._session
        if (inside := _native.backward_under_way()) and session.damage.was_applied_in(inside):
            session.damage.mark(window["ordinal"])  # one backward is one alarm, however many optimizers step inside it
            _native.consume_losses(optimizer)
            return None
        if dropped := session.part(_native.take_drops, optimizer):  # before those that this alarm is of
            session.part(session.dropping.note, window["step"], script_handled.GRADIENTS, dropped)
        bad = [i for i, m in enumerate(window["marks"]) if m >= sinks_of.BAD]
        losses = [loss for loss in window["losses"] if loss["bad"] and loss["owned"]]
        names = optimizer_members.names(optimizer)
        params = optimizer_members.parameters(optimizer)
        sinks: list[Sink] = [("gradient", names[i], g) for i in bad if (g := params[i].grad) is not None]
        name = "loss" if losses else "grad_output" if verdict["is_grad_output"] else names[bad[0]]
        alarm = session.alarms.of(optimizer, verdict["sink"], name)
        # Inside backward the gradients to come are not known yet.
        alarm["harmless"] = verdict["harmless"] and not inside and window["ordinal"] not in session.damage
        alarm["micro_batch"] = verdict["micro_batch"]
        alarm["loss"] = _native.plain(float(window["losses"][-1]["value"])) if window["losses"] else None
        alarm["gradients"] = {
            "bad": [
                {"name": n, "nan": s["nan"], "inf": s["inf"], "numel": s["numel"]}
                for _, n, g in sinks[:64]
                if (s := _native.statistics(g)) is not None
            ],
            "clean": sum(1 for m in window["marks"] if m == 1),
        }
        value = (
            _native.loss_text(math.isnan(float(losses[0]["value"])), False) if losses else _native.gradient_text(name)
        )
        part = session.part(sharding.part_text, sinks[0][2], otherwise="") if sinks and sinks[0][1] == name else ""
        grown = growth.with_bad_loss(session.started_with, optimizer) if alarm["harmless"] else ""
        alarm["text"] = value + part + grown
        _native.consume_losses(optimizer)
        if not losses and not window["on_device"] and session.recent.take_over(optimizer, alarm):
            return session.decision.conclude(optimizer, alarm)
        return session.decision.act(optimizer, alarm, sinks)


def _finite(window: Window) -> str:
    """The rest of a text about what is not finite, in a step whose loss and gradients are."""
    loss, gradients = bool(window["losses"]), any(window["marks"])
    if not loss and not gradients:
        return "; no backward was run in this step"
    return f"; {incident.parts_of_step(loss, gradients)} finite"
