"""Rewind: the bad window runs a second time in place, by returning from the vetoed call.

A window begins where its optimizer stepped last. Where another one has stepped since (a GAN's discriminator), that step
is undone by a copy from before it, and the second run takes it once more: the jump."""

from __future__ import annotations

import sys

import torch

from .. import _native
from ..base import compat
from ..base.robust import in_any_case
from ..capsules import capsule
from ..findings import carried, findings
from ..program import discover, quiet, ranks, readers, rehearsal, sinks as sinks_of, streams
from ..program.files import HeldFiles, not_put_back, written_twice
from ..program.heap import Ledger
from ..program.quiet import Quiet
from . import budgets, restart, room
from .shared import Gradients, trace_continues
from .way import BadStep, Outcome, Refused, serves
from .weights import Weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..base.types import Alarm, Fingerprint, Optimizer, Pending, Session, Sink, Verdict, Vote

OTHER_NUMBERS = "other random numbers were drawn"
SAME_BITS = "; loss and gradients came out with the same bits"
OTHER_BITS = "loss or gradients came out with other bits"
NOT_SO = {
    rehearsal.ASTRAY: ": the second run would not come back to this step",
    rehearsal.APART: ": the step exchanges values with another process",
}


def attempt(step: BadStep) -> Outcome | Refused:
    """The way for a bad step whose window is open. A framework's loop keeps in its objects where it stands, and is not
    rewound; nor is one rank alone of several."""
    if step.where != "window" or step.optimizer is None or step.session.units.of_framework():
        return Refused()
    if step.vote is None and ranks.several():
        return Refused()
    return begin(step.session, step.optimizer, step.alarm, step.sinks, vote=step.vote)


def begin(
    session: Session,
    optimizer: Optimizer,
    alarm: Alarm,
    sinks: Sequence[Sink],
    tries: int = 0,
    expected: Fingerprint | None = None,
    vote: Vote | None = None,
    down: Sequence[Callable[[], Any]] = (),
    losses: Any = None,
) -> Outcome | Refused:
    """Puts the window's start back: returning from the vetoed call runs it again. tries: so many ways went wrong.
    vote: of several ranks, which go back together or not at all. down: counts objects of the program down
    (Ledger.down). losses: of the first run, where the window has others by now."""
    done, why = _begin(session, optimizer, alarm, sinks, tries, expected, vote, down, losses)
    if why and rehearsal.is_under_way():
        rehearsal.end(rehearsal.UNKNOWN)  # the process itself finds the same
    if why:
        if vote is not None and not done:
            why = vote.cast(why)
        return Refused(why)
    return Outcome(runs_again=True)


def _begin(session, optimizer, alarm, sinks, tries, expected, vote, down, losses):
    """(have the ranks voted, why the window does not run again or "")."""
    why, jumps, over, left_out = _native.rewind_way(optimizer, tries)
    way = "jump" if jumps else "rewind"
    if why is None and jumps and "advisory" in alarm:
        why = "what another optimizer has done since is not undone for a step that the script itself left out"
    if why is not None:
        return False, f"{way}: {why}"
    stepping = [optimizer, *over]
    params = [p for o in stepping for p in discover.parameters(o)]
    if why := room.lacks(stepping):
        return False, f"{way}: {why}"
    expected = expected or findings.fingerprint(optimizer)
    held = [(kind, name, tensor.clone() if tensor is not None else None) for kind, name, tensor in sinks]
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
            f"{way}: {', '.join(ledger.read_on[:3])} goes on from where it stands, and may have "
            "been read from by this step",
        )
    # DistributedDataParallel may keep gradients as views of memory of its own, which a second backward writes.
    grads = [(p, p.grad.clone() if vote is not None and p.grad is not None else p.grad) for p in params]
    drawn, named = streams.sums(), findings.in_names()
    weights = Weights(stepping, (session.config.capsule_max or budgets.COPIES_MB) << 20)
    # Where the script itself left a step out, what it saw in its gradients decided on the way.
    if vote is None and "advisory" not in alarm:
        # Of a loss that a scaler scales or compiled code made, and of a way that begins in the middle of the window, it
        # is not known what it is to be.
        losses = losses or [loss["value"] for loss in _native.window(optimizer)["losses"]]
        tells = not jumps and not over and session.scaler is None and not compat.compiled_code_ran()
        tells_more = tells and restart.is_possible(session)
        told = rehearsal.Rehearsal(
            [*(over or [optimizer]), *left_out],
            stepping,
            ledger,
            losses if tells else None,
            lambda: ledger.ruined() or weights.changed(),
            lambda: OTHER_NUMBERS if tells_more and drawn != streams.sums() else "",
            lambda: findings.other_values(named) if tells_more else (),
        ).hold(sys._getframe(), session.report.seconds() / max(1, _native.counters()["steps"]))
        if told is not None:  # in the process itself
            outcome, counted, other = told
            if outcome in (rehearsal.ASTRAY, rehearsal.OTHER) and not down and (earlier := ledger.down(counted)):
                return _begin(session, optimizer, alarm, sinks, tries, expected, vote, earlier, losses)
            if outcome == rehearsal.OTHER:
                return False, f"{way} did not reproduce the step: {other or OTHER_BITS}"
            if outcome in NOT_SO:
                return False, way + NOT_SO[outcome]
    why = _native.rewind_begin()
    if why is not None:
        return False, f"{way}: {why}"
    try:
        return _go_back(
            session,
            optimizer,
            alarm,
            vote,
            down,
            {
                "alarm": alarm,
                "sinks": held,
                "expected": expected,
                "optimizer": optimizer,
                "ledger": ledger,
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
                "losses": losses,
                "since": since,
            },
            params,
        )
    except BaseException:  # a failure of ours, told of elsewhere: the program goes on from where it stood
        session.pending = None
        in_any_case(
            lambda: give_up(optimizer, {"optimizer": optimizer, "ledger": ledger, "grads": grads, "weights": weights}),
            session.holds.release,
            lambda: vote is not None and vote.leave("the second run failed"),
        )
        raise


def _go_back(session, optimizer, alarm, vote, down, pending, params):
    """What _begin returns; the window's start has been put back."""
    ledger, weights, way, over = pending["ledger"], pending["weights"], pending["way"], pending["jumped"]
    ledger.second_run_begins(session.told.left_before(alarm))
    # A program that is to go on must not meet a name that is gone; nor must a rank alone, while the others wait for it.
    goes_on = session.config.on_alarm != "stop" or alarm.get("harmless") or "advisory" in alarm or vote is not None
    read = readers.will_read(sys._getframe(), _native.unset_names()) if goes_on else ()
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
        [*sinks_of.watched_optimizers(), *(sharing for o in stepping for sharing in discover.sharing(o))]
    )
    session.holds.hold_scaler(session.scaler)
    pending["others"] = Gradients(optimizer, params, vote is not None)
    for p in params:
        if p.grad is not None:
            p.grad = torch.zeros_like(p.grad)
    pending["files"], pending["quiet"] = HeldFiles(), Quiet()
    pending["eager"] = compat.run_eagerly()
    session.pending = pending
    for count in down:
        count()
    if rehearsal.is_under_way():
        return True, ""  # nothing is recorded
    _native.trace_clear()
    _native.trace_start()
    _native.gradients_are_sinks("advisory" in alarm)
    capsule.begin(session)
    if "advisory" in alarm:
        _native.wake_on_backward()
    if vote is not None:
        vote.watch(session)
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


def _is_same(found, expected, later):
    """later: the second run may have begun behind the first losses of the window."""
    if later and found["losses"]:
        expected = {**expected, "losses": expected["losses"][-len(found["losses"]) :]}
    return found == expected


def _other_data(pending):
    """Where all values are NaN the bits prove little: a run on other data has drawn other numbers, or has other values
    in its names."""
    if pending["drawn"] != streams.sums():
        return OTHER_NUMBERS
    other = findings.other_values(pending["named"])
    return f"{', '.join(other[:3])} came out with other values" if other else ""


def give_up(optimizer: Optimizer, pending: Pending) -> None:
    """A failure of ours, or a signal of the program's, ends a second run at its step, or before it has begun: the
    program goes on as if there had been none. What of that has been done before is done once more, which changes
    nothing."""
    is_back = pending["optimizer"] is optimizer
    in_any_case(
        _native.trace_stop,
        lambda: _native.gradients_are_sinks(False),
        capsule.drop,
        _native.trace_clear,
        quiet.let_go,
        lambda: compat.end_eager(pending.get("eager")),
        lambda: _native.rewind_end(is_back),
        pending["ledger"].put_back,
        pending["weights"].put_back,
        lambda: "others" in pending and pending["others"].put_back(),
        lambda: _as_before_second_run(optimizer, pending),
        lambda: pending.get("vote") and pending["vote"].leave("the second run failed"),
    )


def end(session: Session, optimizer: Optimizer, pending: Pending) -> Verdict:
    """The second run reached `step` again. True if it did what the first did, and the alarm now tells why.
    "again": it did not, and another way is being tried."""
    try:
        return _end(session, optimizer, pending)
    except BaseException:
        in_any_case(lambda: give_up(optimizer, pending), session.holds.release)
        raise


def _end(session, optimizer, pending):
    _native.trace_stop()
    _native.gradients_are_sinks(False)
    capsule.stop(session, optimizer)
    twice = pending["twice"] + pending["files"].end()
    pending["quiet"].end()
    compat.end_eager(pending["eager"])
    alarm = pending["alarm"]
    eager = pending["eager"] is not None
    is_back = pending["optimizer"] is optimizer
    why = _native.rewind_end(is_back)
    same = _is_same(findings.fingerprint(optimizer), pending["expected"], pending["way"] == "jump")
    sinks = sinks_of.of_optimizer(optimizer)
    failed_again = bool(sinks) or any(loss["bad"] for loss in _native.window(optimizer)["losses"])
    if not is_back:
        why = "another optimizer stepped first"
    if why is None and not same and not eager:
        why = OTHER_BITS
    other = _other_data(pending) if why is None and not eager else ""
    if other and pending["vote"] is None and restart.is_possible(session):
        why = other
    in_place, bound = pending["ledger"].ruined(), pending["ledger"].rebound()
    if written := pending["weights"].changed():
        why = (
            f"the program itself writes {', '.join(written[:3])} after a step, and the second run "
            "began with what the first had written"
        )
    may_count = (
        why == OTHER_BITS or why is not None and bool(pending["over"])
    )  # another way than over the other optimizer's step
    down = (
        pending["ledger"].down(pending["ledger"].counted())
        if may_count and not pending["counts_down"] and pending["vote"] is None
        else ()
    )
    session.told.leave(optimizer, alarm, pending["ledger"])
    lost = pending["ledger"].put_back()
    _put_weights_back(pending)
    pending["others"].put_back()
    session.holds.second_run_ended(why is None and (pending["way"] != "jump" or bool(pending["over"])))
    session.holds.release()  # of the optimizers whose steps are applied; the policy holds again what is this one's
    session.holds.hold_for_step(
        [sharing for o in pending["left_out"] for sharing in discover.sharing(o)], alarm["step"]
    )
    if pending["vote"] is not None and (parted := pending["vote"].come_back(why or "")):
        why = parted
    found = {}
    if why is None and (same or failed_again):
        found = findings.analyse(session, optimizer, sinks, in_place=in_place, bound=bound)
        why = carried.why(found.get("carried"))
    told, shorter = f"{pending['way']} did not reproduce the step: {why}", pending.get("shorter")
    brought = _brought_in(optimizer, pending, found) if why is None and same and not other else ""
    if brought and (earlier := session.told.computed(brought)) is None:
        why = told = f"jump from where another optimizer stepped: {brought} was bad before that"
        shorter = found
    if why is not None:
        findings.passed_over(alarm, told)
        as_before = _as_before_second_run(optimizer, pending)
        _native.trace_clear()
        _native.tape_clear()
        if as_before and down and _begin_again(session, pending, pending["tries"], twice, shorter, down):
            return "again"
        if as_before and (tries := _longer_way(optimizer, pending)) is not None:
            if _begin_again(session, pending, tries, twice, shorter):
                return "again"
        alarm["rerun_text"] += written_twice(twice) + not_put_back(lost)
        if as_before and shorter and (session.second_runs.in_place_only() or not restart.is_possible(session)):
            return _told_by_the_shorter(session, alarm, shorter)
        trace_continues(session)
        return False
    _native.rewind_forget()
    passed_over = alarm["rerun_text"]
    alarm["rerun_by"], alarm["rerun_verified"] = pending["way"], same and not other
    together = "on all ranks together " if pending["vote"] is not None else ""
    back = (
        f"rewound over the step of {pending['over']}, which was undone and taken again, "
        if pending["over"]
        else "rewound to where another optimizer stepped last "
        if pending["way"] == "jump"
        else "rewound "
    )
    alarm["rerun_text"] = (
        back
        + together
        + "and run again in place"
        + (", what it counts set back" if pending["counts_down"] else "")
        + (", eagerly instead of compiled" if eager else "")
        + written_twice(twice)
    )
    if not same and not failed_again:
        alarm["rerun"] = "order-dependent"
        alarm["rerun_text"] += f"; the step came out finite: {compat.ONLY_COMPILED}"
        _native.trace_clear()
        _native.tape_clear()
        trace_continues(session)
        return True
    own = {id(p) for p in discover.parameters(optimizer)}
    for p, grad in pending["grads"]:
        if id(p) not in own:  # of a step that was taken again
            p.grad = grad
    findings.apply(alarm, found)
    if brought:
        session.told.follow(alarm, earlier)
    trace_continues(session)
    alarm["rerun"] = "persistent"
    alarm["rerun_text"] += (
        f"; it failed again, but {other}" if other else SAME_BITS if same else "; it failed again, with other bits"
    )
    session.recorded = not brought
    if brought:
        _native.tape_clear()  # that step is in the capsule of the other alarm
        alarm["rerun_text"] += (
            f"; {brought} is of the step of {earlier['optimizer']} that was left out, whose alarm "
            f"at step {earlier['step']} tells of it"
        )
    if passed_over:
        alarm["rerun_text"] += f" ({passed_over})"
    alarm["rerun_text"] += not_put_back(lost)
    return True


def _begin_again(session, pending, tries, twice, shorter, down=()):
    """Tries another second run in the place of one that went wrong."""
    optimizer, alarm, sinks, expected = (pending[key] for key in ("optimizer", "alarm", "sinks", "expected"))
    outcome = begin(session, optimizer, alarm, sinks, tries, expected, down=down, losses=pending["losses"])
    if not serves(outcome, alarm):
        return False
    session.pending.update(twice=twice, shorter=shorter)
    return True


def _longer_way(optimizer, pending):
    """How many ways are to be passed over for one that begins before the second run that was a jump and went wrong;
    None: there is none."""
    if pending["way"] != "jump" or pending["vote"] is not None:
        return None
    for tries in (1, 0):  # what the second run has left behind may have closed its own way
        if _native.rewind_way(optimizer, tries)[0] is None and _native.rewind_since() < pending["since"]:
            return tries
    return None


def _brought_in(optimizer, pending, found):
    """What a second run from another optimizer's step began with and found bad, where the window of its own optimizer
    begins before that and can be run again as a whole: a value without its graph, as of a log-probability that the
    actor's step has computed, or ""."""
    if not found.get("births"):
        return ""
    first = found["births"][0]
    given = (
        any(use["nan"] or use["inf"] for use in first["inputs"]) if first["op"] else first["phase"] in ("data", "state")
    )
    if not given or _longer_way(optimizer, pending) is None:
        return ""
    return first.get("name") or "what it read"


def _told_by_the_shorter(session, alarm, found):
    """No way goes back further: what the jump found, which came out with the same bits, is told."""
    findings.apply(alarm, found)
    alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"] = "persistent", "jump", True
    alarm["rerun_text"] = (
        f"rewound to where another optimizer stepped last and run again in place{SAME_BITS} ({alarm['rerun_text']})"
    )
    trace_continues(session)
    return True


def _put_weights_back(pending):
    if damaged := pending["weights"].put_back():
        pending["alarm"]["weights"] = "damaged"
        findings.passed_over(
            pending["alarm"], f"{', '.join(damaged[:3])} are as the second run left them: too large to be copied"
        )


def _as_before_second_run(optimizer, pending):
    """The second run went another way: the script goes on with the names, gradients and generators of the first."""
    if pending["optimizer"] is not optimizer:
        _native.rewind_forget()
        return False
    if not _native.rewind_undo():
        return False
    for p, grad in pending["grads"]:
        p.grad = grad
    return True


def abandon(session: Session) -> Pending:
    """The second run did not come back to `step` (the script raised or ended in it)."""
    pending, session.pending = session.pending, None
    _native.trace_stop()
    _native.gradients_are_sinks(False)
    _native.trace_clear()
    capsule.drop()
    _native.rewind_end(False)
    _native.rewind_forget()
    pending["ledger"].put_back()
    _put_weights_back(pending)
    pending["others"].put_back()
    twice = pending["twice"] + pending["files"].end()
    pending["quiet"].end()
    compat.end_eager(pending["eager"])
    why = "the second run did not come back to this step"
    if pending["vote"] is not None:
        pending["vote"].leave(why)
        why = pending["vote"].parted or why
    findings.passed_over(pending["alarm"], f"{pending['way']}: {why}" + written_twice(twice))
    return pending
