"""Rewind: the bad window runs a second time in place, by returning from the vetoed call; and --level trace."""

import sys

import torch

from . import _native, compat, discover, findings, readers
from . import sinks as sinks_of
from .heap import Ledger
from .quiet import Quiet

ONLY_COMPILED = "it fails only when compiled, or with the random numbers that compiled code draws"


def try_trace(session, optimizer, alarm, sinks):
    """The step was traced while it ran the first time. False: it was not, or the trace cannot tell."""
    if session.config.level != "trace" or not _native.trace_on():
        return False
    found = findings.analyse(session, optimizer, sinks, findings.MAX_OPS if session.config.report else 0)
    session.report.trace_ops = found.pop("ops", None)
    explained = findings.apply(alarm, found)
    if explained:
        alarm["rerun_by"], alarm["rerun_text"] = "trace", "every op was recorded as the step ran (--level trace)"
    _native.trace_start()
    # What a compiled kernel did inside is not in the trace: another way may run it eagerly and know better.
    return explained and not compat.compiled_code_ran()


def begin(session, optimizer, alarm, sinks):
    """Puts the window's start back. True: returning from the vetoed call runs it again."""
    why = _native.rewind_check(optimizer)
    if why is None and (own := discover.unwatched_generators(session.generators)):
        why = f"the program draws from a generator of its own ({', '.join(own[:3])})"
    if why is not None:
        alarm["rerun_text"] = f"rewind: {why}"
        return False
    expected = findings.fingerprint(optimizer)
    held = [(kind, name, tensor.clone() if tensor is not None else None) for kind, name, tensor in sinks]
    ledger = Ledger(sys._getframe(), discover.parameters(optimizer), sinks_of.watched_optimizers())
    if ledger.one_way:
        alarm["rerun_text"] = f"rewind: what was read from {', '.join(ledger.one_way[:3])} cannot be read again"
        return False
    grads = [(p, p.grad) for p in discover.parameters(optimizer)]
    why = _native.rewind_begin()
    if why is not None:
        alarm["rerun_text"] = f"rewind: {why}"
        return False
    goes_on = session.config.on_alarm != "stop" or "advisory" in alarm
    if goes_on and (read := readers.will_read(sys._getframe(), _native.unset_names())):
        _native.rewind_end()               # a program that is to go on must not meet a name that is gone
        _native.rewind_undo()
        alarm["rerun_text"] = f"rewind: {', '.join(read[:3])} would be read again, and nothing keeps the value"
        return False
    session.holds.hold(discover.sharing(optimizer))
    session.holds.hold_scaler(session.scaler)
    for p in discover.parameters(optimizer):
        if p.grad is not None:
            p.grad = torch.zeros_like(p.grad)
    session.pending = {"alarm": alarm, "sinks": held, "expected": expected, "optimizer": optimizer, "quiet": Quiet(),
                       "eager": compat.run_eagerly(), "ledger": ledger, "grads": grads}
    _native.trace_clear()
    _native.trace_start()
    return True


def end(session, optimizer, pending):
    """The second run reached `step` again. True if it did what the first did, and the alarm now tells why."""
    _native.trace_stop()
    pending["quiet"].end()
    compat.end_eager(pending["eager"])
    alarm = pending["alarm"]
    eager = pending["eager"] is not None
    why = _native.rewind_end()
    same = findings.fingerprint(optimizer) == pending["expected"]
    sinks = sinks_of.of_optimizer(optimizer)
    failed_again = bool(sinks) or any(l["bad"] for l in _native.window(optimizer)["losses"])
    if pending["optimizer"] is not optimizer:
        why = "another optimizer stepped first"
    if why is None and not same and not eager:
        why = "loss or gradients came out with other bits"
    if why is None and (ruined := pending["ledger"].ruined()):
        why = f"the step writes {', '.join(ruined[:3])} in place, and its first run had left it non-finite"
    lost = pending["ledger"].put_back()
    if why is not None:
        alarm["rerun_text"] = f"rewind did not reproduce the step: {why}"
        _as_before_second_run(optimizer, pending)
        _native.trace_clear()
        _trace_on_as_before(session)
        return False
    alarm["rerun_by"], alarm["rerun_verified"] = "rewind", same
    alarm["rerun_text"] = "rewound and run again in place" + (", eagerly instead of compiled" if eager else "")
    if not same and not failed_again:
        alarm["rerun"] = "order-dependent"
        alarm["rerun_text"] += f"; the step came out finite: {ONLY_COMPILED}"
        _native.trace_clear()
        _trace_on_as_before(session)
        return True
    findings.apply(alarm, findings.analyse(session, optimizer, sinks))
    _trace_on_as_before(session)
    alarm["rerun"] = "persistent"
    alarm["rerun_text"] += "; loss and gradients came out with the same bits" if same else "; it failed again, with other bits"
    if lost:
        alarm["rerun_text"] += f"; it also wrote a second time, too large to put back: {', '.join(lost[:8])}"
    return True


def _as_before_second_run(optimizer, pending):
    """The second run went another way: the script goes on with the names, gradients and generators of the first."""
    if pending["optimizer"] is optimizer and _native.rewind_undo():
        for p, grad in pending["grads"]:
            p.grad = grad


def _trace_on_as_before(session):
    """With --level trace every step is traced, those after a second run too."""
    if session.config.level == "trace":
        _native.trace_start()


def abandon(session):
    """The second run did not come back to `step` (the script raised or ended in it)."""
    pending, session.pending = session.pending, None
    _native.trace_stop()
    _native.trace_clear()
    _native.rewind_end()
    pending["ledger"].put_back()
    pending["quiet"].end()
    compat.end_eager(pending["eager"])
    pending["alarm"]["rerun_text"] = "rewind: the second run did not come back to this step"
    return pending
