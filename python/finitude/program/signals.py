"""Handlers of signals that the program has installed, while we run in its main thread.

An exception that such a handler raises is the program's: it must not be taken for an internal failure, nor be caught by
our code on its way. While we explain a step each handler is wrapped. What it raises is kept, and `GivesWay` is raised
in its place, which ends the explanation; whoever called us raises what was kept, out of the call that the program made.
While the program itself runs a step again the handlers raise as they do without us, and the second run is over. Once
the program has ended, what they raise is for nobody.

What a handler wrote during a second run (a flag that asks the training to stop) is put back with all that the second
run wrote: such a handler is called once more when the second run is over."""

from __future__ import annotations

import contextlib
import signal
import threading

from .. import _native
from ..errors import GivesWay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_held = {}  # number of a signal -> (the program's handler, ours in its place)
_raised = None  # what a handler raised and nobody has taken yet
GIVES_WAY, NOTES, PASSES, ENDED = (
    "our code runs",
    "and is at its end",
    "the program runs a step again",
    "the program has ended",
)
_mode = PASSES
_NUMBERS = tuple(signal.valid_signals())  # once: a list of them takes memory, which may be short
_last = None  # what was raised last
when_raised: Any = None  # is given what a handler raises while the program runs a step again
_heard = []  # (handler, number) of those that returned since `hold`
_undone = []  # those of them whose writes have been put back
_waiting: Any = None  # while a fork is under way: signals that are handled after it


def _is_main():
    """The only thread that handlers run in."""
    return threading.current_thread() is threading.main_thread()


def hold(mode: str) -> None:
    """Wraps the program's handlers; those that are wrapped already stay so."""
    global _mode
    if not _is_main():
        return
    _mode = mode
    for number in _NUMBERS:
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, _Wrapped):
            ours = _Wrapped(handler)
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, ours)
                _held[number] = handler, ours
    _native.keep_children_again()


def put_back() -> None:
    """What the program's objects hold is what they held before a second run."""
    global _heard
    _undone.extend(_heard)
    _heard = []


def let_go() -> None:
    """The program's handlers again, but for those that it has replaced meanwhile."""
    global _mode
    if not _is_main():
        return
    _mode = PASSES
    undone = dict.fromkeys(_undone)
    _undone.clear()
    _heard.clear()
    while _held:
        number, (handler, ours) = _held.popitem()
        if signal.getsignal(number) is ours:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, handler)
    _native.keep_children_again()
    for handler, number in undone:
        handler(number, None)


def is_of_handler(error: BaseException) -> bool:
    """Was it raised by one of the program's handlers, where those are not wrapped? No, where memory is too short to
    look: the error is then one of Finitude."""
    try:
        return _is_of_handler(error)
    except MemoryError:
        return False


def _is_of_handler(error):
    codes = {id(code) for number in _NUMBERS for code in _codes(signal.getsignal(number))}
    trace = error.__traceback__
    while trace is not None:
        if id(trace.tb_frame.f_code) in codes:
            return True
        trace = trace.tb_next
    return False


def _codes(handler):
    while (inner := getattr(handler, "func", None)) is not None:  # functools.partial
        handler = inner
    for it in (handler, getattr(type(handler), "__call__", None)):
        if (code := getattr(it, "__code__", None)) is not None:  # of a method, too
            yield code


def take() -> BaseException | None:
    """What a handler of the program raised since the last call, or None."""
    global _raised
    raised, _raised = _raised, None
    return raised


def last() -> BaseException | None:
    """What a handler of the program raised last, taken or not."""
    return _last


class _Wrapped:
    def __init__(self, handler):
        self._handler = handler

    def __call__(self, number, frame):
        global _raised, _last
        if _waiting is not None:
            _waiting.append((self, number, frame))
            return
        try:
            self._handler(number, frame)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            if _mode == ENDED:
                return
            e.__traceback__ = e.__traceback__.tb_next  # type: ignore[union-attr]  # this frame is in it
            _raised = _last = e
            if _mode == PASSES:
                if when_raised is not None:
                    when_raised(e)
                raise
        else:
            _heard.append((self._handler, number))
            return
        if _mode == GIVES_WAY:
            raise GivesWay()


@contextlib.contextmanager
def later() -> Iterator[None]:
    """Signals that come meanwhile are handled at the end."""
    global _waiting
    is_held = bool(_held)
    if not is_held:
        hold(_mode)
    _waiting = []
    try:
        yield
    finally:
        waiting, _waiting = _waiting, None
        if not is_held:
            let_go()
        for wrapped, number, frame in waiting:
            wrapped(number, frame)
