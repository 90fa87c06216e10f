"""Rewind: the bad window runs a second time in place, by returning from the vetoed call.

A window begins where its optimizer stepped last. Where another one has stepped since (a GAN's discriminator), that step
is undone by a copy from before it, and the second run takes it once more: the jump."""

from __future__ import annotations

import dataclasses
import sys

import torch

from .. import _native
from ..base import compat
from ..base.robust import in_any_case
from ..effects import fork_dry_run, known_libraries, name_liveness
from ..effects.object_snapshot import Ledger
from ..program import optimizer_members, ranks, rng_generators, sharding, sinks as sinks_of
from ..report import incident
from . import budgets, memory_limit
from .alarm_correlation import Gradients
from .isolation import IsolatedRun
from .way import BadStep, Outcome, Refused, Way
from .weights import Weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..base.types import InPlace, Optimizer, Pending, Sink

OTHER_NUMBERS = "other random numbers were drawn"
OTHER_BITS = "loss or gradients came out with other bits"
NOT_SO = {
    fork_dry_run.ASTRAY: ": the second run would not come back to this step",
    known_libraries.EXCHANGES: ": the step exchanges values with another process",
}


def same_bits(compared: str) -> str:
    """compared: as incident.compared names it."""
    return f"; {compared} came out with the same bits"


def attempt(step: BadStep) -> Outcome | Refused:
    """The way for a bad step whose window is open. A framework's loop keeps its position in its objects, and is not
    rewound; nor is one rank alone of several."""
    if step.where != "window" or step.optimizer is None or step.session.units.of_framework():
        return Refused()
    if step.vote is None and ranks.several():
        return Refused()
    return begin(step)


WAY = Way("rewind", attempt)


def begin(
    step: BadStep,
    tries: int = 0,
    down: Sequence[Callable[[], Any]] = (),
    losses: Any = None,
    holds: bool = False,
) -> Outcome | Refused:
    """Puts the window's start back: returning from the vetoed call runs it again. step: of an optimizer.
    Its `expected` is given where the open window no longer has the expected values. tries: so many ways went wrong.
    down: counts objects of the program down (Ledger.down). losses: of the first run, where the window has others by
    now. holds: weights, and tensors that are written between two steps (Ledger.written_between_steps), are read as they
    are now."""
    done, why = _begin(step, tries, down, losses, holds)
    if why and fork_dry_run.is_under_way():
        fork_dry_run.end(fork_dry_run.UNKNOWN)  # the process itself finds the same
    if why:
        if step.vote is not None and not done:
            why = step.vote.cast(why)
        return Refused(why)
    return Outcome(runs_again=True)


def _begin(step, tries, down, losses, holds):
    """(have the ranks voted, why the window does not run again or "")."""
    session, optimizer, alarm, vote = step.session, step.optimizer, step.alarm, step.vote
    why, jumps, over, left_out = _native.rewind_way(optimizer, tries)
    way: InPlace = "jump" if jumps else "rewind"
    if why is None and jumps and "advisory" in alarm:
        why = "what another optimizer has done since is not undone for a step that the script itself skipped"
    if why is not None:
        return False, f"{way}: {why}"
    stepping = [optimizer, *over]
    params = [p for o in stepping for p in optimizer_members.parameters(o)]
    if why := memory_limit.lacks(stepping):
        return False, f"{way}: {why}"
    expected = step.expected or incident.fingerprint(optimizer)
    held: list[Sink] = [
        (kind, name, sharding.copied(tensor)) for kind, name, tensor in step.sinks if tensor is not None
    ]
    since = _native.rewind_since()
    ledger = Ledger(sys._getframe(), params, sinks_of.watched_optimizers(), since)
    if ledger.one_way:
        return (
            False,
            f"{way}: {', '.join(ledger.one_way[:3])} gives each thing once, and may have been used by this step",
        )
    if ledger.read_on:
        return (
            False,
            f"{way}: {', '.join(ledger.read_on[:3])} cannot be rewound, and this step may have read from it",
        )
    # DistributedDataParallel may keep gradients as views of memory of its own, which a second backward writes.
    grads = [(p, sharding.copied(p.grad) if vote is not None and p.grad is not None else p.grad) for p in params]
    drawn, named = rng_generators.sums(), incident.in_names()
    weights = Weights(stepping, (session.config.capsule_max or budgets.COPIES_MB) << 20)
    # What the program may have written since the window began. A jump itself changes weights.
    written = [*ledger.written_between_steps(), *(params if not jumps and weights.all_fit() else ())]
    # Where the script itself left a step out, what it saw in its gradients decided on the way.
    if vote is None and "advisory" not in alarm:
        # Of a loss that a scaler scales or compiled code made, and of a way that begins in the middle of the window, it
        # is not known what it is to be.
        losses = losses or [loss["value"] for loss in _native.window(optimizer)["losses"]]
        compares_losses = not jumps and not over and session.scaling.scaler is None and not compat.compiled_code_ran()
        compares_data = compares_losses and session.restart.is_possible()
        rehearsed = fork_dry_run.Rehearsal(
            [*(over or [optimizer]), *left_out],
            stepping,
            ledger,
            losses if compares_losses else None,
            lambda: ledger.ruined() or (holds or jumps) and weights.changed(),
            lambda: (
                _other_begin(weights) or (OTHER_NUMBERS if compares_data and drawn != rng_generators.sums() else "")
            ),
            lambda: incident.other_values(named) if compares_data else (),
        ).hold(sys._getframe(), session.report.seconds() / max(1, _native.counters()["steps"]))
        if rehearsed is not None:  # in the process itself
            outcome, counted, other = rehearsed
            if outcome in (fork_dry_run.ASTRAY, fork_dry_run.OTHER) and not down and (earlier := ledger.down(counted)):
                return _begin(dataclasses.replace(step, expected=expected), tries, earlier, losses, holds)
            if outcome == fork_dry_run.OTHER and not holds and written:
                return _begin(dataclasses.replace(step, expected=expected), tries, down, losses, True)
            if outcome == fork_dry_run.OTHER:
                return False, f"{way} did not reproduce the step: {other or OTHER_BITS}"
            if outcome in NOT_SO:
                return False, way + NOT_SO[outcome]
    pending: Pending = {
        "alarm": alarm,
        "sinks": held,
        "expected": expected,
        "optimizer": optimizer,
        "isolation": IsolatedRun(ledger, written if holds else ()),
        "grads": grads,
        "weights": weights,
        "left_out": left_out,
        "way": way,
        "tries": tries,
        "jumped": over,
        "over": " and ".join(sorted({type(o).__name__ for o in over})),
        "twice": [],
        "drawn": drawn,
        "named": named,
        "vote": vote,
        "counts_down": bool(down),
        "holds": holds,
        "losses": losses,
        "since": since,
    }
    why = _native.rewind_begin()  # from here on whatever fails is undone
    if why is not None:
        return False, f"{way}: {why}"
    try:
        return _go_back(step, down, pending, params)
    except BaseException:  # an internal failure, reported elsewhere: the program continues as before
        in_any_case(
            session.second_run.take,
            lambda: give_up(optimizer, pending),
            session.holds.release,
        )
        raise


def _other_begin(weights):
    written = weights.changed()
    return f"the second run began with what the program itself writes into {', '.join(written[:3])}" if written else ""


def _go_back(step, down, pending, params):
    """What _begin returns; the window's start has been put back."""
    session, optimizer, alarm, vote = step.session, step.optimizer, step.alarm, step.vote
    isolation, weights, way, over = pending["isolation"], pending["weights"], pending["way"], pending["jumped"]
    isolation.ledger.second_run_begins(session.recent.left_before(alarm))
    # A program that continues must not meet a name that is gone; nor must a rank alone, while the others wait for it.
    continues = session.config.on_alarm != "stop" or alarm.get("harmless") or "advisory" in alarm or vote is not None
    read = name_liveness.will_read(sys._getframe(), _native.unset_names()) if continues else ()
    why = f"{way}: {', '.join(read[:3])} would be read again, and nothing keeps the value" if read else ""
    if vote is not None:
        why = vote.cast(why, " ".join([way, *sorted(type(o).__name__ for o in over)]))
    if why:
        _native.rewind_end(True)
        _native.rewind_undo()
        weights.put_back()
        return True, why
    stepping = [optimizer, *over]
    session.holds.hold(
        [*sinks_of.watched_optimizers(), *(sharing for o in stepping for sharing in optimizer_members.sharing(o))]
    )
    session.holds.hold_scaler(session.scaling.scaler)
    pending["others"] = Gradients(optimizer, params, vote is not None)
    for p in params:
        if p.grad is not None:
            p.grad = torch.zeros_like(p.grad)
    isolation.begin()
    session.second_run.begin(pending)
    for count in down:
        count()
    if fork_dry_run.is_under_way():
        return True, ""  # nothing is recorded
    isolation.record(session.capsules, dropped="advisory" in alarm)
    if "advisory" in alarm:
        _native.wake_on_backward()
    if vote is not None:
        vote.watch()
    return True, ""


def passes(pending: Pending, optimizer: Optimizer) -> str | None:
    """A step of another optimizer that belongs to the second run: what becomes of it, "applied" or "left out" as in the
    first; or None."""
    is_bad = _native.window_verdict(optimizer, False)["kind"] == "alarm"
    if optimizer is pending["optimizer"] or not any(
        optimizer is o for o in pending["left_out" if is_bad else "jumped"]
    ):
        return None
    return "left out" if is_bad else "applied"


def give_up(optimizer: Optimizer, pending: Pending) -> None:
    """An internal failure, or a signal of the program's, ends a second run at its step, or before it has begun: the
    program continues as if there had been none. What of that has been done before is done once more, which changes
    nothing."""
    is_back, vote = pending["optimizer"] is optimizer, pending["vote"]
    in_any_case(
        pending["isolation"].drop_recording,
        pending["isolation"].let_go,
        lambda: _native.rewind_end(is_back),
        pending["isolation"].put_objects_back,
        pending["weights"].put_back,
        pending["others"].put_back if "others" in pending else lambda: None,
        lambda: as_before_second_run(optimizer, pending),
        lambda: vote.leave("the second run failed") if vote is not None else None,
    )


def as_before_second_run(optimizer: Optimizer, pending: Pending) -> bool:
    """The second run went another way: the script continues with the names, gradients and generators of the first."""
    if pending["optimizer"] is not optimizer:
        _native.rewind_forget()
        return False
    if not _native.rewind_undo():
        return False
    for p, grad in pending["grads"]:
        p.grad = grad
    return True
