"""events.jsonl of a run folder: what happened, one JSON object a line, on disk as soon as it is known."""

from __future__ import annotations

import datetime
import json
import os

from ..base import secrets
from ..base.plain_json import safe
from ..program import ranks
from . import capsule_alarm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .on_event import Listeners

NAME = "events.jsonl"
MAX_BYTES = 64 << 20  # of a file; what comes after that is only in the report


class Events:
    """Appends to the file. Each line is written by one call of write(2) and not buffered, so a process that is killed
    leaves whole lines. The first failure ends it; the report holds the same."""

    def __init__(
        self,
        directory: Callable[[], str | None],
        complain: Callable[[str], None],
        redact: bool,
    ):
        """directory: makes the run folder and returns it, None where there is none. complain: says once that a file
        cannot be written. redact: an event holds what a redacted report does."""
        self._directory, self._complain, self._redact = directory, complain, redact
        self.listeners: Listeners | None = None  # get each line after it is on disk, or where there is none
        self._descriptor: int | None = None
        self._pid = 0
        self._size = 0
        self._is_off = self._is_closed = False

    def add(self, kind: str, text: str, step: int | None = None, optimizer: str = "", **more: Any) -> None:
        """step: None before the first and after the last one. more: further keys of that kind."""
        if self._is_closed:
            return
        now = datetime.datetime.now(datetime.timezone.utc)
        event = {
            "schema": 1,
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "step": step,
            "rank": ranks.world()[0],
            "optimizer": optimizer,
            "kind": kind,
            "text": "" if self._redact else text,
            **(capsule_alarm.redacted(more) if self._redact else more),
        }
        line = json.dumps(secrets.hidden(safe(event)), allow_nan=False).encode() + b"\n"
        self._append(line)
        if self.listeners is not None:
            self.listeners.deliver(line)

    def _append(self, line):
        if self._is_off:
            return
        try:
            if self._descriptor is None or self._pid != os.getpid():
                self._open_for_process()
            if self._descriptor is None or self._size + len(line) > MAX_BYTES:
                self._is_off = True
                return
            self._size += os.write(self._descriptor, line)
        except OSError as e:
            self._is_off = True
            self._complain(f"cannot write {NAME}: {e.strerror or e}")

    def close(self) -> None:
        self._is_off = self._is_closed = True
        if self._descriptor is not None and self._pid == os.getpid():
            os.close(self._descriptor)
        self._descriptor = None
        if self.listeners is not None:
            self.listeners.close()

    def _open_for_process(self):
        """A forked process has a folder of its own."""
        self._descriptor, self._pid = None, os.getpid()
        if folder := self._directory():
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(os.path.join(folder, NAME), flags, 0o666)
            self._size = os.fstat(self._descriptor).st_size
