"""Called by the engine on rare events only. A failure here must never reach the user's program: it costs what it
happens in, and is reported. A step that was found to be bad by then is bad all the same: what its policy says is done
(minimal.py). What a handler of a signal of the program's raises meanwhile is the program's."""

from __future__ import annotations

import sys

import torch

from .. import _native
from ..effects import fork_dry_run
from ..errors import GivesWay, NonFiniteError, Reached
from ..program import optimizer_members, signals
from . import minimal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

session: Any = None  # the Session of this process, or None
_standing = optimizer_members.Standing()
after_step = _native.check_after_step  # the hook that looks at what a step wrote: one object, see compat.skip_in_dynamo
ROOM = 1000  # calls more than the program's limit of recursion allows: it may step near its end
EACH_STEP = (
    "on_hand_begin",
    "on_hand_end",
    "on_backward",
    "on_created",
    "on_restored",
    "leave_out",
    "on_warning",
    "on_verified",
)  # what may be called in each healthy step


def _call(name, args):
    if fork_dry_run.forking is not None and name in ("on_window", "on_scaler_step"):
        fork_dry_run.came_back(*args)
    if name not in EACH_STEP:
        signals.hold(signals.GIVES_WAY)
        if session.second_run.pending is None:
            session.acting.forget()
    with _standing:
        return getattr(session, name)(*args)


def _second_run_ends(error):
    """A handler of a signal raised while the program runs a step again: the program continues with that, and with its
    streams and files."""
    if session is not None and runs_again():
        name = type(error).__name__
        why = f"{name}, raised by a handler of a signal, ended the second run"
        session.part(session.ending.unexplained, why, minimal.GAVE_WAY.format(name))
        signals.let_go()
        signals.take()


def runs_again() -> bool:
    """Is a second run under way in this process?"""
    return session.second_run.pending is not None or session.hand.again is not None


def _tried(name, args):
    """What the call returns. What it raises is for the program."""
    optimizer = args[0] if args and isinstance(args[0], torch.optim.Optimizer) else None
    try:
        return _call(name, args)
    except (NonFiniteError, KeyboardInterrupt, SystemExit, Reached):
        raise
    except GivesWay:
        raised = type(signals.last()).__name__
        why = f"{raised}, raised by a handler of a signal of the program, ended the explanation"
        if name not in minimal.AT_STEP:
            session.part(session.ending.unexplained, why, minimal.GAVE_WAY.format(raised))
        return _decided(name, optimizer, why, raised)
    except BaseException as e:
        if signals.is_of_handler(e):
            raise
        fail(e)
        if session.target is not None:
            return session.target.failed()
        return _decided(name, optimizer)


def _decided(name, optimizer, *why):
    session.part(signals.hold, signals.NOTES)
    try:
        verdict = session.fallback.decide(name, optimizer, *why)
        return verdict if optimizer is not None else None
    except NonFiniteError:
        raise
    except BaseException as e:  # nothing is known of the step, but that the gate has stopped at it
        fail(e)
        return True if name == "on_window" and session.config.on_alarm != "warn" else None


def _heard():
    """What a handler of a signal of the program raised while we ran, or None."""
    if session is not None and runs_again():
        signals.when_raised = _second_run_ends
        signals.hold(signals.PASSES)
        return None
    signals.let_go()
    return signals.take()


def fail(error):
    """Notes an internal failure. In the copy of a process that rehearses a second run it does not return."""
    if session is not None:
        session.failures.note(error)


def _guard(name):
    def call(*args):
        if session is None:
            return None
        result = None
        error: BaseException | None = None
        limit = sys.getrecursionlimit()
        try:
            sys.setrecursionlimit(limit + ROOM)
            result = _tried(name, args)
        except NonFiniteError as e:
            error = e.with_traceback(None)  # the user's traceback ends at optimizer.step, not in our decisions
        except BaseException as e:
            error = e
        try:
            sys.setrecursionlimit(limit)
            error = _heard() or error
        except BaseException as e:
            fail(e)
        if error is None:
            return result
        try:
            raise error
        finally:
            error = None  # its traceback holds this frame

    call.__name__ = name
    return call


on_backward = _guard("on_backward")
first_seen = _guard("first_seen")
on_window = _guard("on_window")
on_scaler_skip = _guard("on_scaler_skip")
on_written = _guard("on_written")
on_kept = _guard("on_kept")
on_created = _guard("on_created")
on_restored = _guard("on_restored")
on_stream_met = _guard("on_stream_met")
on_searched = _guard("on_searched")
leave_out = _guard("leave_out")
on_armed = _guard("on_armed")
on_unit_raised = _guard("on_unit_raised")
on_backward_raised = _guard("on_backward_raised")
on_scaler_step = _guard("on_scaler_step")
on_scaler_agreed = _guard("on_scaler_agreed")
on_late = _guard("on_late")
on_hand_begin = _guard("on_hand_begin")
on_hand_end = _guard("on_hand_end")
on_left_bad = _guard("on_left_bad")
on_bad_backward = _guard("on_bad_backward")
on_dropped = _guard("on_dropped")
on_asked_row = _guard("on_asked_row")
on_warning = _guard("on_warning")
on_verified = _guard("on_verified")


def on_closure(optimizer, args, kwargs):
    result = _guard("on_closure")(optimizer, args, kwargs)
    return result if isinstance(result, tuple) else None
