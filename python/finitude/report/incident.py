"""What the trace of a step says about its alarm: fingerprint, facts, births, cause, fix."""

from __future__ import annotations

import json
import math
import sys

import torch

from .. import _native
from ..base import sources
from ..base.plain_json import number, safe
from ..effects import notebook_cells
from ..program import batch_source, grad_scaler, last_update, optimizer_members, ranks, step_start_state
from . import (
    beyond_rate,
    carried_state,
    growth,
    hyperparameters,
    impossible_state,
    inside_call,
    own_gradients,
    patch,
    samples,
    value_lines,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from .._native import Known
    from ..base.types import (
        Alarm,
        Birth,
        Cause,
        Confidence,
        Config,
        Findings,
        Fingerprint,
        FromFile,
        History,
        Late,
        Optimizer,
        Order,
        Phase,
        Sink,
        StartMagnitudes,
        Tensor,
    )
    from ..program.grad_scaler import Scaling


NOT_RUN = _native.NOT_RUN  # the cause of an alarm of which nothing more is known


def fingerprint(
    optimizer: Optimizer | None, began_with: Sequence[Sink] = (), raised: Sequence[Sink] = ()
) -> Fingerprint:
    """What must come out again, bit for bit: the losses of the window and the gradients as scanned; began_with: (kind,
    name, tensor) of what was bad before the first step; raised: of what the script's own exception is about.

    None for an optimizer that is gone: the losses that no step answered for are what is left."""
    if optimizer is None:
        losses = _native.pending_bad_losses() + _native.waiting_checks()
        return {"losses": [loss["sum"] for loss in losses], "generator": None, "gradients": None}
    window = _native.window(optimizer)
    found: Fingerprint = {
        "losses": [loss["sum"] for loss in window["losses"]],
        # Where all values are NaN the bits prove little; a run on other data draws other numbers.
        "generator": _native.checksum(torch.get_rng_state()),
        "gradients": [
            _native.checksum(p.grad) if p.grad is not None else 0 for p in optimizer_members.parameters(optimizer)
        ],
    }
    for kind, name, tensor in began_with[:1]:
        found["start"] = [kind, name, _native.checksum(tensor)]
    if raised and all(tensor is not None for *_, tensor in raised):
        found["raised"] = [_native.checksum(tensor) for *_, tensor in raised]
    return found


def late_fingerprint(loss: float, gradients: Iterable[Iterable[int]]) -> Fingerprint:
    """What a device reported of a step that the program has left behind, in place of a fingerprint. gradients: [(index,
    NaN, Inf), ...]."""
    return {"late": {"loss": float(loss).hex(), "gradients": sorted(map(list, gradients))}}


def is_as_reported(optimizer: Optimizer, late: Late) -> bool:
    """Is that also what the step holds that has just run?"""
    losses = [float(loss["value"]).hex() for loss in _native.window(optimizer)["losses"]]
    found = [
        [i, s["nan"], s["inf"]]
        for i, p in enumerate(optimizer_members.parameters(optimizer))
        if p.grad is not None and (s := _native.statistics(p.grad)) and s["nan"] + s["inf"]
    ]
    # A long queue of steps may have kept only the first of the bad gradients.
    return all(one in found for one in late["gradients"]) and (not losses or late["loss"] in losses)


def compared(found: Fingerprint, applied: bool = False) -> str:
    """What there was to compare, as a report names it: a script that checks its loss first leaves no gradients.
    applied: the step is one that the script has dropped, and what was compared is the step that it then applied."""
    if found.get("raised") is not None:
        return "the value"
    parts = ("loss", found.get("losses")), ("gradients", found.get("gradients"))
    names = [name for name, values in parts if any(values or ())]
    if not names:
        return "random numbers, which is all that could be compared,"
    return ("the " if len(names) == 1 else "") + " and ".join(names) + " of the step that was then applied" * applied


def parts_of_step(loss: bool, gradients: bool) -> str:
    """What of a step there is to be finite. With what follows it: "loss and gradients are"."""
    return "loss and gradients are" if loss and gradients else "the loss is" if loss else "gradients are"


def is_as_expected(found: Fingerprint, expected: Fingerprint) -> bool:
    """Did the same come out, as far as it was known? expected: None is not compared."""
    of_found: FromFile = found
    return all(of_found[key] == value for key, value in expected.items() if value is not None)


def is_elsewhere(order: Order, optimizer: Optimizer | None, sinks: Iterable[Sink]) -> bool:
    """Did a second run fail at the loss where the first failed at a gradient, or the other way round? Its birth is
    another alarm's."""
    first = order.get("alarm", {}).get("sink", {}).get("kind")
    losses = _native.window(optimizer)["losses"] if optimizer is not None else _native.pending_bad_losses()
    is_loss = (
        any(loss.get("bad", True) for loss in losses)
        or any(kind == "loss" for kind, *_ in sinks)
        or any(loss["parameter"] < 0 for loss in _native.waiting_checks())
    )
    now = "loss" if is_loss else "gradient"
    known = (
        order["first"] == order["step"]
        and not order.get("resumed")
        and not order["compiled"]
        and not order.get("swallowed")
    )
    return known and {first, now} == {"loss", "gradient"}


NAMED_MB = 256  # of tensors in names that are compared


def in_names() -> list[list[Any]]:
    """[number of the frame, name, checksum] of the tensors of the user's frames: where losses and gradients are NaN all
    over, what shows that a second run had the same data. Not of what is written in place: a sum over many steps is
    another one by now."""
    found, left = [], NAMED_MB << 20
    for place, frame in enumerate(optimizer_members.user_frames()):
        for name, value in optimizer_members.names_of(frame).items():
            # Of a class of the program's own every question may be its code.
            if (
                type(value) is torch.Tensor
                and not value.is_inference()
                and value.layout is torch.strided
                and value._version == 0
                and (left := left - value.nbytes) >= 0
            ):
                found.append([place, name, _native.checksum(value)])
    return found


def other_values(named: list[list[Any]]) -> list[str]:
    """Names that now hold another value than then; one that could not be kept shows nothing."""
    now = {(number, name): value for number, name, value in in_names()}
    return [name for number, name, value in named if now.get((number, name), value) != value]


def history(ordinal: int) -> History:
    """What is known of the last steps of an optimizer."""
    points = _native.history(ordinal)
    return {"loss": [number(p[0]) for p in points], "grad_absmax": [number(p[1]) for p in points]}


def load_rules(config: Config) -> None:
    """The rules of the user's own that options name; others enter themselves as the program runs."""
    if config.rules:
        from .. import rules

        rules.load(config.rules)


MAX_OPS = 100_000
MEMORY_SECONDS = 10.0  # for experiments with a second run that differs


class Analysis:
    """Finds out what the trace of a step shows."""

    def __init__(
        self,
        config: Config,
        scaling: Scaling,
        started_with: StartMagnitudes,
        allowed: Sequence[Tensor],
        known: Known,
        is_without_tensor: Callable[[], bool],
    ):
        """allowed: tensors that may hold non-finite values. known: bad tensors of earlier alarms. is_without_tensor:
        does only an exception show the bad value?"""
        self._config, self._scaling, self._started_with = config, scaling, started_with
        self._allowed, self._known, self._is_without_tensor = allowed, known, is_without_tensor

    def findings(
        self,
        optimizer: Optimizer | None,
        sinks: Sequence[Sink],
        want_ops: int = 0,
        swallowed: bool = False,
        in_place: Sequence[tuple[str, Tensor]] = (),
        bound: Sequence[tuple[str, Tensor]] = (),
        was_bad: bool = False,
        most_seconds: float = math.inf,
        given_away: bool = False,
    ) -> Findings:
        """The findings of the trace that was just taken. swallowed: overflows that reached no sink count as births.
        in_place, bound: (name, tensor) of memory that a second run found as the first had left it, and that each run
        writes or re-binds; "carried" then names what of it may have had a part. was_bad: the first run of the step was
        not finite; where this one is, memory that nobody wrote may be why. most_seconds: of experiments with the whole
        step. given_away: what this rank gave other ranks is what is looked at."""
        lines = value_lines.end()
        _native.trace_stop()
        for kind, name, tensor in sinks or ():
            if tensor is not None and not _native.is_finite(tensor):
                _native.trace_sink(kind, name, tensor)
        self._name_values(optimizer)
        if began_with := [*in_place, *bound]:
            carried_state.name(began_with)
        asked, was_written = want_ops, any(kind in ("parameter", "state") for kind, *_ in sinks or ())
        if began_with or was_written and impossible_state.look(optimizer):
            want_ops = max(want_ops, MAX_OPS)
        if (own := sys.modules.get(f"{__package__.partition('.')[0]}.rules")) is not None:
            _native.set_rules(own.entered())
        # Where the optimizer itself did the damage, its state is that of no update.
        last = None if optimizer is None or swallowed else lambda: last_update.last(optimizer)
        found = json.loads(
            _native.analyse(
                self._facts(optimizer),
                want_ops,
                swallowed,
                min(float(self._config.experiments), most_seconds),
                last,
                ranks.several(),
                self._is_without_tensor(),
                was_bad,
                given_away,
            )
        )
        _native.trace_clear()
        ops = found.get("ops") or []
        if not asked:
            found.pop("ops", None)
        if began_with:
            found["carried"] = carried_state.part(found, ops, MAX_OPS, bool(in_place))
        if "births" not in found:  # of a tape that does not play
            return found
        for birth in found["births"]:
            if birth["phase"] == "state" and not birth["op"]:
                birth["rows"] = []  # no samples
        batch_source.name_reader_on_the_way(found)
        patch.add_diff(found)
        inside_call.add_to(found)
        if optimizer is not None:
            steps = _native.ring_steps(_native.window(optimizer)["ordinal"])
            beyond_rate.add_to(found, optimizer, self._started_with.get(id(optimizer)) or {}, steps)
            hyperparameters.add_to(found, optimizer)
            impossible_state.add_to(found, optimizer, ops)
            impossible_state.add_variance(found, optimizer)
            growth.add_to(found, steps)
        found = samples.with_samples(found)
        late = own_gradients.births(found, sinks or ())
        value_lines.add_to(found, lines, optimizer, sinks or ())
        own_gradients.add_to(found, late)
        own_gradients.add_hook(found)
        found.pop("is_overflow", None)  # these are no part of a report
        found.pop("came_from", None)
        found.pop("clamps_divisor", None)
        return ranks.not_from_here(found)

    def of_unwritten_memory(self, optimizer: Optimizer, sinks: Sequence[Sink]) -> Findings | None:
        """The same of a second run that differs from the first: its findings explain the first as well where they are
        memory that nobody wrote, which holds something else in each run. Else None."""
        found = self.findings(optimizer, sinks, was_bad=True, most_seconds=MEMORY_SECONDS)
        found.pop("by_chance", None)
        return found if found.get("births") and found["cause"]["class"] == "uninitialised-memory" else None

    def _facts(self, optimizer):
        if optimizer is None:
            return "{}"
        ordinal = _native.window(optimizer)["ordinal"]
        points = [{"loss": number(loss), "grad": number(g), "lr": number(r)} for loss, g, r in _native.history(ordinal)]
        group = max(
            optimizer.param_groups, key=lambda group: hyperparameters.number(group.get("lr")) or 0.0, default={}
        )
        rates = {hyperparameters.number(one.get("lr")) or 0.0 for one in optimizer.param_groups}
        scaler = self._scaling.scaler
        start = max(self._started_with.get(id(optimizer), {}).values(), default=0.0)
        return json.dumps(
            safe(
                {
                    "points": points,
                    "param_absmax": [start, max(optimizer_members.magnitudes(optimizer).values(), default=0.0)]
                    if start > 0
                    else [],
                    "lr_now": hyperparameters.number(group.get("lr")) or 0.0,
                    "lr_least": min(rates) if len(rates) > 1 else 0.0,
                    "optimizer": type(optimizer).__name__,
                    "optimizer_eps": hyperparameters.number(group.get("eps")) or 0.0,
                    "half_parameters": any(
                        p.dtype in (torch.float16, torch.bfloat16) for p in optimizer_members.parameters(optimizer)
                    ),
                    "scaler_active": scaler is not None,
                    "scale": float(scaler.get_scale()) if scaler is not None else 0.0,
                    "left_scale": grad_scaler.left_scale() if scaler is None and points else 0.0,
                    "scaler_skips_in_row": self._scaling.skips.in_a_row(ordinal),
                    "samples": step_start_state.sample_counts(),
                }
            )
        )

    def _name_values(self, optimizer):
        """Names the storages that the trace saw."""
        for kind, name, tensor in optimizer_members.named_memory(optimizer):
            _native.trace_name(tensor, kind, name)
        for tensor in self._allowed:
            _native.trace_name(tensor, "constant", "allowed")
        for name, tensor in self._known.carried:  # a hidden state is no batch: an earlier step, skipped, computed it
            _native.trace_name(tensor, "buffer", name)


def apply(alarm: Alarm, found: Findings) -> bool:
    """Births, cause, fix and path into the alarm. True if a birth was found."""
    if not found.get("births"):
        return False
    batch_source.name_loop_line(found["births"][0])
    if around := sources.around(found["births"][0].get("file") or "", found["births"][0].get("line") or 0):
        found["births"][0]["around"] = around
    found = notebook_cells.name_cells(sources.filled(found))
    for birth in found["births"]:  # the line may be another by now
        if birth.get("user_frame") and not sources.is_of_package(birth.get("file") or ""):
            birth["user_frame"] = None
    if " into the gradient of " in found["cause"]["text"] and found["births"][0]["op"]:
        found["births"][0]["phase"] = "backward"  # the script wrote it after backward: no forward pass, and no data
    take_over(alarm, found)
    if alarm["sink"]["kind"] == "gradient" and found["births"][0]["phase"] in ("forward", "backward", "data"):
        # Gradients add up over the micro-batches: which of them it was is known only now.
        alarm["micro_batch"] = found.get("micro_batch", alarm.get("micro_batch", 0))
    samples.name(alarm, found)
    return True


def take_over(alarm: Alarm, known: Alarm | Findings) -> None:
    """Births, cause, fix and path, as they are there."""
    alarm["births"], alarm["cause"] = known["births"], known["cause"]
    alarm["fix"], alarm["path"] = known["fix"], known["path"]


def note_failed_way(alarm: Alarm, why: str) -> None:
    """A way to run the step again that did not serve, and why; once, where two of a kind came out the same."""
    if why in alarm["rerun_text"].split("; "):
        return
    alarm["rerun_text"] = "; ".join(filter(None, (alarm["rerun_text"], why)))


def birth(phase: Phase, op: str = "", file: str = "", line: int = 0) -> Birth:
    """A birth whose place is known without a trace."""
    return {
        "phase": phase,
        "op": op,
        "file": file,
        "line": line,
        "source": sources.line(file, line) if file else "",
        "module": "",
        "node": "",
        "inputs": [],
        "outputs": [],
        "rows": [],
    }


def cause(name: str, text: str, confidence: Confidence = "likely") -> Cause:
    """A cause that is known without an experiment. name: its class."""
    return {"class": name, "confidence": confidence, "experiments": [], "text": text}


def as_loaded_state(alarm: Alarm) -> None:
    """What a parameter or state held before the first step is state, whatever wrote it there."""
    for birth in alarm["births"][:1]:
        if birth["phase"] != "memory":
            birth["phase"] = "state"
            if alarm["cause"]["class"] != "uninitialised-memory":
                held = alarm["sink"]["name"]
                alarm["cause"] = {
                    **alarm["cause"],
                    "class": "corrupted-state",
                    "experiments": [],
                    "confidence": "likely",
                    "text": f"{held} was not finite before any step was taken: a bad checkpoint or initial value",
                }
                instead = {
                    "parameter": "another initial value",
                    "state": "load the weights alone and let the optimizer begin again",
                }
                text = f"an earlier checkpoint, or {instead.get(alarm['sink']['kind'], 'reset the statistics')}"
                alarm["fix"] = {
                    "text": text,
                    "verified": False,
                    "file": birth.get("file", ""),
                    "line": birth.get("line", 0),
                }
