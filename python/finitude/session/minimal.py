"""What is done about a bad step where code of Finitude has failed, or gives way to the program: what the policy says,
with what is known by then. Veto first: nothing here that the decision needs can fail, and what is more than that is
tried, each thing alone."""

from __future__ import annotations

import contextlib
import json
import os

import torch

from .. import _native
from ..base.plain_json import safe
from ..base.say import say
from ..effects import output_suppression
from ..errors import NonFiniteError
from ..program import ranks
from ..rerun import rewind
from .failures import Acting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm, Config, Optimizer, Parts, SinkKind
    from ..report.document import Report

CLOSING = "finitude: the closing line could not be made; the report holds what is known."
FAILED = "a failure of our own ended the explanation"
# What was done with a step that an exception of the program ended. Readers know it by "exception" (src/show/words.cpp).
GAVE_WAY = "not applied: the program's own exception ({}) ended the explanation"
TAKEN_BACK = "written and put back: the program's own exception ({}) ended the explanation"
JUDGES = ("on_window", "on_scaler_step", "first_seen", "on_written")  # calls in which a step may be found bad
AT_STEP = (*JUDGES, "on_searched", "on_scaler_agreed", "on_late", "on_scaler_skip", "on_hand_begin", "on_hand_end")


class Fallback:
    """Does it for the session, of which parts may have failed."""

    def __init__(self, session: Parts):
        self._session = session

    def decide(self, name: str, optimizer: Optimizer | None, why: str = FAILED, raised: str = "") -> bool | None:
        """True: the step is skipped; None: applied, or no step is bad. raised: the name of an exception of the program
        that is raised instead of NonFiniteError, and out of the call of the step whatever the policy says."""
        session = self._session
        if name not in AT_STEP:
            if name == "on_backward" and session.second_run.pending is None:
                session.holds.forget()  # which that call was to do; a second run needs them to its end
            return None
        if name == "first_seen":
            session.part(_watch, optimizer)
        pending = session.second_run.give_up()
        acting = session.acting.take()
        unexplained = session.report.take_unexplained()
        alarm = pending["alarm"] if pending is not None else acting.alarm if acting is not None else unexplained
        if pending is not None:
            session.part(rewind.give_up, optimizer, pending)
            session.part(session.holds.release)
        self._let_go()
        if alarm is None and name in JUDGES and optimizer is not None:
            acting = self._acting_on(name, optimizer)
            alarm = acting.alarm if acting is not None else None
        elif acting is None and alarm is not None:
            acting = Acting(alarm)
        if alarm is None:
            return None
        _add(alarm, "rerun_text", why)
        if "advisory" in alarm:
            session.part(session.dropping.end, alarm, False)
            return None
        verdict = self._carry_out(optimizer, acting, raised)
        if name == "first_seen":
            session.part(session.initial_state.decided, optimizer, verdict)
        return verdict

    def _let_go(self):
        """Of what an explanation that ended in its middle may hold."""
        session = self._session
        for call in (
            output_suppression.let_go,
            _native.trace_stop,
            _native.trace_clear,
            _native.tape_clear,
            lambda: _native.gradients_are_sinks(False),
            session.units.give_up,
            _native.trace_start if session.config.level == "trace" else output_suppression.let_go,
        ):
            session.part(call)

    def _acting_on(self, name, optimizer):
        """The failure came before there was an alarm: the gate's own verdict says whether the step is bad."""
        session = self._session
        if name == "on_written":
            if not _holds_bad(p for group in optimizer.param_groups for p in group["params"] if p.requires_grad):
                return None
            if _get(lambda: _native.window(optimizer)["ordinal"], 0) in session.damage:
                return None  # which is known
            undone = session.config.on_alarm != "warn" and _get(lambda: _native.undo_step(optimizer), False)
            alarm = self._alarm(
                optimizer, "parameter", "parameters", "the optimizer wrote values that are not finite", 1
            )
            alarm["weights"] = "clean" if undone else "damaged"
            return Acting(alarm, written=True, undone=undone)
        verdict = _get(lambda: _native.window_verdict(optimizer, False), None)
        if verdict is None:  # the gate itself fails: torch is asked
            bad = _holds_bad(p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
            verdict = {"kind": "alarm" if bad else "nothing", "sink": "gradient", "harmless": False}
        if verdict["kind"] != "alarm":
            return None
        name = "loss" if verdict["sink"] == "loss" else "gradients"
        alarm = self._alarm(optimizer, verdict["sink"], name, f"{name} not finite", 0)
        alarm["harmless"] = verdict["harmless"]
        return Acting(alarm)

    def _alarm(self, optimizer: Optimizer, kind: SinkKind, name: str, text: str, back: int) -> Alarm:
        """As NewAlarms.of_class makes it, which may have failed. back: steps before the open one."""
        session = self._session
        window = _get(lambda: _native.window(optimizer), {"step": 0, "ordinal": 0})
        return {
            "step": max(0, window["step"] - back),
            "micro_batch": 0,
            "rank": 0,
            "optimizer": type(optimizer).__name__,
            "sink": {"kind": kind, "name": name},
            "weights": "clean",
            "optimizer_ordinal": window["ordinal"],
            "births": [],
            "rerun": "not-run",
            "rerun_by": "none",
            "rerun_verified": False,
            "rerun_text": "",
            "cause": {
                "class": "unknown",
                "confidence": "possible",
                "text": "the step was not run again",
                "experiments": [],
            },
            "fix": None,
            "capsule": None,
            "harmless": False,
            "text": text,
            "loss": None,
            "path": [],
            "level": session.config.level,
            "policy": session.config.on_alarm,
            "history": {"loss": [], "grad_absmax": []},
        }

    def _carry_out(self, optimizer, acting, raised):
        session = self._session
        alarm, policy = acting.alarm, session.config.on_alarm
        ordinal = alarm.get("optimizer_ordinal", 0) if acting.ordinal is None else acting.ordinal
        action = acting.action or _get(
            lambda: session.policy.on_alarm(ordinal, alarm["step"], alarm["harmless"]), policy
        )
        if action == "rollback":
            action = "stop" if alarm["weights"] == "damaged" else "skip"
        if action == "lower-rate":
            action = "skip"
        if action == "skip" and _get(ranks.several, False):
            action = "stop"  # the others may take this step
        applied = acting.written and not acting.undone
        if not alarm["harmless"] and (applied or action == "warn" and not raised):
            alarm["weights"] = "damaged"
            session.damage.mark(ordinal)
        if raised and not applied:
            alarm["action"] = (TAKEN_BACK if acting.undone else GAVE_WAY).format(raised)
        elif action == "warn" or applied and (raised or action == "skip"):
            alarm["action"] = "reported, the step is applied"
        elif action == "skip":
            alarm["action"] = "the step was undone" if acting.undone else "the step was skipped"
        else:
            alarm["action"] = alarm.get("action") or "stopped"
        self._report(optimizer, alarm)
        if action in ("stop", "raise"):
            if raised:
                return True
            raise NonFiniteError(f"step {alarm['step']}: {alarm['text']}", report=alarm)
        if action == "warn" or acting.written:
            return None
        session.part(session.skipped.note, ordinal, alarm["step"])
        if optimizer is not None:
            session.part(_native.consume_losses, optimizer)
            session.part(session.skipped.continue_without, optimizer, alarm["step"])
        return True

    def _report(self, optimizer: Optimizer | None, alarm: Alarm) -> None:
        session = self._session
        alarm.pop("optimizer_ordinal", None)
        alarm.pop("advisory", None)
        if any(a is alarm for a in session.report.alarms):
            return
        if optimizer is not None:
            session.part(session.recent.mark_reported, optimizer, alarm)
        session.part(session.report.add_alarm, alarm)
        if not any(a is alarm for a in session.report.alarms) and not session.report.alarms_left_out:
            session.report.alarms.append(alarm)
        if session.part(session.console.print_alarm, alarm, otherwise="failed") == "failed":
            say(f"finitude: step {alarm['step']}: {alarm['text']}, {alarm['action']}\n")


def _watch(optimizer):
    """Its gradients at least."""
    if not _native.is_registered(optimizer):
        _native.register_optimizer(optimizer, True, True)


def _add(alarm, key, text):
    alarm[key] = f"{alarm[key]}; {text}" if alarm.get(key) else text


def _get(ask, otherwise):
    try:
        return ask()
    except Exception:
        return otherwise


def _holds_bad(tensors):
    try:
        return any(not bool(torch.isfinite(t.detach()).all()) for t in tensors)
    except Exception:  # a layout that has no such operator
        return False


# -- the report ------------------------------------------------------------------------------------

PLAIN = (
    "step",
    "micro_batch",
    "rank",
    "optimizer",
    "sink",
    "weights",
    "rerun",
    "rerun_by",
    "births",
    "cause",
    "fix",
    "capsule",
    "text",
    "action",
)


def write_report(report: Report, config: Config) -> list[str]:
    """Where the report as it should be cannot be made: what of it is known. The paths written."""
    written = []
    document = {
        "schema": 1,
        "outcome": "alarm" if report.alarms else "clean",
        "reason": "",
        "command": [] if config.redact else report.command,
        "script": report.script or "",
        "watched": _watched(),
        "alarms": report.alarms,
        "advisories": report.advisories,
        "failures": report.failures,
        "unwatched_from": None,
    }
    if document["outcome"] == "alarm":
        document["reason"] = str(report.alarms[0].get("text", ""))
    text = _text(document) or _text(
        {**document, "alarms": [{k: a.get(k) for k in PLAIN} for a in report.alarms], "advisories": []}
    )
    folder = report.directory or _get(report.planned_directory, "")
    for path in (folder and os.path.join(folder, "report.json"), config.report):
        if path and text:
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
                written.append(path)
    return written


def _watched():
    names = ("optimizers", "steps", "backward_calls", "gradients_scanned", "scaler_skips", "handled_by_script")
    counters = _get(_native.counters, {})
    return {name: counters.get(name, 0) for name in names}


def _text(document):
    for prepare in (safe, lambda it: it):
        try:
            return json.dumps(prepare(document), indent=1, allow_nan=False, default=str) + "\n"
        except Exception:
            continue
    return ""
