"""With --signals-together: SIGTERM and SIGUSR1 reach the handlers of all ranks in the same step, whichever rank they
were sent to. A rank that ended, or saved a checkpoint, one step before the others would leave them in a collective
operation that nobody ends.

A thread hears the signal (Python's handlers run only between two operations of the main thread) and asks through the
store through which the ranks met. From then on no rank begins a step. Each answers with the step that it is in; rank 0
chooses the one after the last of these, and all continue. The handler is called before that step writes.

After the limit nobody waits any more: the handler is called as soon as the main thread can, and a rank that SIGTERM
cannot reach, as it waits inside torch, writes its report and ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time

from .. import _native
from ..base import compat
from ..program import ranks
from . import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Config, Optimizer
    from ..report.document import Report
    from .program_exit import Ending

SHARED = (signal.SIGTERM, signal.SIGUSR1)
BEFORE_END_S = 60.0  # how long before the end of a SLURM job SIGUSR1 is delivered
GRACE_S = 5.0  # after the limit, for a main thread that is between two operations
MERGE_S = 1.0  # a launcher sends a signal to one rank after the other: within that time it is one signal
_POLL_S, _ANSWER_S = 0.5, 0.02
_ROUND = "finitude/signals/{}"  # its keys: asked, at/RANK, step


def before_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """torch calls it before each step of any optimizer, after the gate. May raise what the program's handler raises."""
    session = native_callbacks.session
    if session is None or os.getpid() != session.pid or native_callbacks.runs_again():
        return
    due = session.part(session.shared_signals.due_at, optimizer)
    if due:
        session.shared_signals.deliver(due, sys._getframe(1))


class SharedSignals:
    def __init__(self, config: Config, report: Report, ending: Ending, explains: bool):
        """explains: this process explains a step of another one, and is ended by whoever wants it."""
        self._limit_s = 0.0 if explains else config.signals_together
        self._report, self._ending = report, ending
        self.is_on = self._limit_s > 0
        self._optimizer: Optimizer | None = None  # whose steps are counted: the first that steps
        self._handlers: dict[int, Any] = {}  # of the program, by the signal
        self._ours: dict[int, Callable[..., Any]] = {}
        self._heard: list[int] = []  # signals that were sent to this rank, and are not asked about yet
        self._pipe = (-1, -1)
        self._thread: threading.Thread | None = None
        self._round = 0
        self._chosen: tuple[int, int] | None = None  # signal, step
        self._may_step, self._is_delivered, self._is_closed = threading.Event(), threading.Event(), threading.Event()
        self._may_step.set()
        self._late: set[int] = set()  # signals whose handlers are called at once
        self._unheard: list[int] = []  # signals that the thread itself sends
        self._ends_at = _end_of_job() if self.is_on else None

    # -- in the main thread ---------------------------------------------------------------------

    def due_at(self, optimizer: Optimizer) -> int:
        """The signal that is delivered before this step, 0: none."""
        if (self._optimizer is None and not self._begin_sharing(optimizer)) or optimizer is not self._optimizer:
            return 0
        self._may_step.wait(self._limit_s + GRACE_S)
        if self._chosen is None or self._step_now() < self._chosen[1]:
            return 0
        number, self._chosen = self._chosen[0], None
        return number

    def deliver(self, number: int, frame: Any) -> None:
        """Calls the program's handler, or does what the signal does where there is none."""
        self._is_delivered.set()
        handler = self._handlers.get(number)
        if callable(handler) and not _is_own(handler):
            handler(number, frame)
        elif number == signal.SIGTERM:
            self._ending.hurry()
            self._ending.end("SIGTERM ended the program")
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _step_now(self):
        return _native.window(self._optimizer)["step"] - 1  # the gate has counted it

    def _begin_sharing(self, optimizer):
        """At the first step of several ranks."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or not ranks.several() or not _native.is_registered(optimizer) or compat.group_store() is None:
            return False
        self._optimizer, self._pipe = optimizer, os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in SHARED:
            handler = signal.getsignal(number)
            if callable(handler) or (handler == signal.SIG_DFL and number == signal.SIGTERM):
                self._handlers[number] = handler
                self._ours[number] = _Deferred(self)
                signal.signal(number, self._ours[number])
        before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if before >= 0:  # of an event loop: what our handlers say is heard then
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._share_signals, name="finitude-signals", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # it must not be in the store as the interpreter is taken down
        return True

    def note(self, number: int, frame: Any) -> None:
        """The signal has come to the main thread."""
        if number in self._late:
            self._late.discard(number)
            self.deliver(number, frame)
            return
        wakeup = signal.set_wakeup_fd(-1)
        if wakeup >= 0:
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        if wakeup != self._pipe[1]:  # else the thread has heard it already
            with contextlib.suppress(OSError):
                os.write(self._pipe[1], bytes((number,)))

    def close(self) -> None:
        """The program's handlers again, but for those that it has replaced."""
        if self._is_closed.is_set() or self._thread is None:
            return
        self._is_closed.set()
        with contextlib.suppress(OSError):
            os.write(self._pipe[1], b"\0")
        self._thread.join(2 * _POLL_S)
        self.forked()
        atexit.unregister(self.close)

    def forked(self) -> None:
        """In a process that the program forked, signals are its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, ours in self._ours.items():
            if signal.getsignal(number) is ours:
                signal.signal(number, self._handlers[number])
        self._ours.clear()
        wakeup = signal.set_wakeup_fd(-1)
        if wakeup not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    # -- in the thread --------------------------------------------------------------------------

    def _share_signals(self):
        try:
            while not self._is_closed.is_set():
                self._hear(_POLL_S)
                self._hear_end_of_job()
                if number := self._signal_asked_for():
                    self._agree(number)
        except Exception:  # the store is gone, and with it whoever kept it
            self._may_step.set()
        while not self._is_closed.is_set():
            self._hear(_POLL_S)
            while self._heard:
                self._give_way(self._heard.pop())

    def _hear(self, seconds):
        if select.select(self._pipe[:1], [], [], seconds)[0]:
            for number in os.read(self._pipe[0], 512):
                if number in self._unheard:
                    self._unheard.remove(number)
                elif number in self._handlers and number not in self._heard:
                    self._heard.append(number)

    def _hear_end_of_job(self):
        if self._ends_at is not None and time.time() > self._ends_at - BEFORE_END_S and ranks.world()[0] == 0:
            self._report.complain(f"the time of the SLURM job ends in {self._ends_at - time.time():.0f} s")
            self._ends_at = None
            if signal.SIGUSR1 in self._handlers:
                self._heard.append(signal.SIGUSR1)

    def _signal_asked_for(self):
        """The signal that any rank has asked about, 0: none."""
        store, key = compat.group_store(), _ROUND.format(self._round) + "/asked"
        if self._heard:
            return int(store.compare_set(key, "", str(int(self._heard[0]))))
        return int(store.get(key)) if store.check([key]) else 0

    def _agree(self, number):
        until = time.monotonic() + self._limit_s
        self._is_delivered.clear()
        self._may_step.clear()  # first of all: a step that it does not stop has been counted, and is in the answer
        step = self._choose(self._step_now(), until)
        self._round += 1
        if step >= 0:
            self._chosen = number, step
        self._may_step.set()
        if step < 0 or not self._is_delivered.wait(max(0.0, until - time.monotonic())):
            self._chosen = None
            self._give_way(number)
        self._is_closed.wait(MERGE_S)
        self._hear(0)
        self._heard = [one for one in self._heard if one != number]

    def _choose(self, answer, until):
        """The step at which the signal is delivered; negative: the ranks have not agreed."""
        store, key, (rank, size) = compat.group_store(), _ROUND.format(self._round), ranks.world()
        answers = [f"{key}/at/{r}" for r in range(size)]
        store.set(answers[rank], str(answer))
        while not store.check([f"{key}/step"]) and time.monotonic() < until and not self._is_closed.is_set():
            if rank == 0 and store.check(answers):
                chosen = 1 + max(int(store.get(one)) for one in answers)
                store.compare_set(f"{key}/step", "", str(chosen))
            else:
                time.sleep(_ANSWER_S)
        return int(store.compare_set(f"{key}/step", "", "-1"))

    def _give_way(self, number):
        """There is no step in which it can be delivered on all ranks."""
        if number not in self._handlers or self._is_closed.is_set():
            return
        self._late.add(number)
        self._unheard.append(number)
        os.kill(os.getpid(), number)
        if number != signal.SIGTERM or self._is_delivered.wait(GRACE_S) or self._is_closed.is_set():
            return
        why = f"SIGTERM did not reach the program within {self._limit_s + GRACE_S:.0f} s"
        self._report.complain(why)
        self._ending.hurry()
        self._ending.end(why)
        os._exit(128 + signal.SIGTERM)


class _Deferred:
    """In the place of the program's handler."""

    def __init__(self, signals):
        self._signals = signals

    def __call__(self, number, frame):
        self._signals.note(number, frame)


def _is_own(handler):
    """Of Finitude, in the process that this one was forked by: it ends that one."""
    return (getattr(handler, "__module__", None) or "").startswith("finitude.")


def _end_of_job():
    """In Unix seconds; None: not known."""
    text = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
