"""Passes each event on: to the command or address of --on-event, to a function of watch(on_event=...). A thread does it
after the event is on disk, and the training never waits for it."""

from __future__ import annotations

import json
import os
import queue
import shlex
import subprocess
import threading
import time

from ..base import family
from ..base.config import is_address
from ..base.own_child import OwnChild, OwnProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_WAITING = 256  # events; what comes while so many wait is dropped
COMMAND_SECONDS = 30.0
END_SECONDS = 5.0  # that the end of a run waits for events not delivered yet


class Listeners:
    """complain: says something once."""

    def __init__(self, command: str, complain: Callable[[str, str], None]):
        self._address = command.strip() if is_address(command) else ""
        self._words_of_command = shlex.split(command) if command and not self._address else []
        self._complain = complain
        self._listener: Callable[[dict[str, Any]], Any] | None = None
        self._waits: Callable[[], bool] = lambda: False
        self._waiting: queue.Queue[bytes | None] | None = None
        self._pid = 0

    def listen(self, function: Callable[[dict[str, Any]], Any], waits: Callable[[], bool] = lambda: False) -> None:
        """It is called with each event from now on, in the thread of this object; not while waits(): a step may run
        again then, after which the objects of the program are as before it."""
        self._listener, self._waits = function, waits

    def deliver(self, line: bytes) -> None:
        """Of the event on that line of events.jsonl. Does not wait, and raises nothing."""
        try:
            self._thread_of_process().put_nowait(line)
        except queue.Full:
            self._complain(f"--on-event is too slow: events are dropped while {MOST_WAITING} wait", "slow listener")
        except RuntimeError:  # the interpreter ends, and starts no thread
            self._deliver(line, END_SECONDS)

    def _thread_of_process(self):
        """A forked process has none of its parent's threads."""
        if self._waiting is None or self._pid != os.getpid():
            waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
            threading.Thread(target=self._deliver_each, args=(waiting,), name="finitude-events", daemon=True).start()
            self._waiting, self._pid = waiting, os.getpid()
        return self._waiting

    def _deliver_each(self, waiting):
        while True:
            line, until = waiting.get(), time.monotonic() + COMMAND_SECONDS
            if line is None:  # the run has ended
                return
            while self._waits() and time.monotonic() < until:
                time.sleep(0.005)
            self._deliver(line, COMMAND_SECONDS)
            waiting.task_done()

    def _deliver(self, line, seconds):
        try:
            if self._words_of_command:
                self._run_command(line, seconds)
            if self._address:
                self._post(line, seconds)
            if self._listener is not None:
                self._listener(json.loads(line))
        except BaseException as e:  # of the user's function, which must not end the thread
            self._complain(f"on_event failed: {type(e).__name__}: {str(e)[:200]}".rstrip(": "), "failed listener")

    def _run_command(self, line, seconds):
        environment = dict(os.environ)
        family.withdraw(environment)  # it is no part of the run
        try:
            # What it prints is not the program's: a watched run prints what an unwatched one prints.
            with OwnChild() as child, self._started(environment) as process:
                child.started(process.pid)
                try:
                    process.communicate(line, seconds)
                finally:
                    process.kill()  # nothing, where it has ended
        except subprocess.TimeoutExpired:
            return self._complain(
                f"--on-event {self._words_of_command[0]} took longer than {seconds:.0f} s", "failed command"
            )
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or str(e)
            return self._complain(f"--on-event {self._words_of_command[0]} cannot be started: {why}", "failed command")
        if process.returncode:
            self._complain(f"--on-event {self._words_of_command[0]} ended with {process.returncode}", "failed command")

    def _started(self, environment: dict[str, str]) -> OwnProcess:
        nowhere = subprocess.DEVNULL
        return OwnProcess(
            self._words_of_command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, env=environment
        )

    def _post(self, line, seconds):
        from . import webhook

        try:
            webhook.post(self._address, line, seconds)
        except webhook.Failed as e:
            self._complain(f"--on-event {webhook.shown(self._address)} {e}", "failed address")

    def close(self) -> None:
        """Waits up to END_SECONDS until all are delivered. Then the thread ends, and the function is let go: it may
        hold any object of the program."""
        self._drain()
        if self._waiting is not None and self._pid == os.getpid():
            try:
                self._waiting.put_nowait(None)
            except queue.Full:  # it is stuck in an event, and ends with the process
                pass
        self._waiting, self._listener, self._waits = None, None, lambda: False

    def _drain(self) -> None:
        until = time.monotonic() + END_SECONDS
        while self._waiting is not None and self._pid == os.getpid() and self._waiting.unfinished_tasks:
            if time.monotonic() > until:
                self._complain("--on-event was not done with all events when the run ended", "late listener")
                return
            time.sleep(0.01)
