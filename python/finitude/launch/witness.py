"""Which signal ended a process of the run that another process started, such as a rank: for the report of all. Linux
before 6.15 says it only as long as nobody has waited for that process, which its launcher does a moment later. Neither
is changed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import sys
import threading

from ..report import merge, run_folder

PERIOD_MS = 200  # in which a new process of the run is found
# struct pidfd_info and its ioctl, of linux/pidfd.h: the exit status is there for as long as the descriptor is open.
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_INFO_EXIT = 1 << 3


def name_of(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_of(pid, descriptor):
    """Of a process that has ended; 0: none, or not known. descriptor: of its pidfd."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            fields = f.read().rpartition(")")[2].split()
        status = int(fields[49]) if fields[0] in "ZX" else 0
    except (OSError, ValueError, IndexError):  # somebody has waited for it
        status = _status_of(descriptor)
    try:
        code = os.waitstatus_to_exitcode(status)
    except ValueError:
        return 0
    return -code if code < 0 else 0


def _status_of(descriptor):
    """As wait() gave it to whoever waited; 0 where the kernel does not keep it."""
    info = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return 0
    mask, *_, status = _INFO.unpack(info)
    return status if mask & _INFO_EXIT else 0


class Witness:
    """Looks at the processes of the run in `directory`, in a thread of its own."""

    def __init__(self, directory: str):
        self.directory, self._known, self._thread = directory, set(), None
        if hasattr(os, "pidfd_open"):
            self._wakes, self._wake = os.pipe()
            self._thread = threading.Thread(target=self._look, name="finitude witness", daemon=True)
            self._thread.start()

    def end(self) -> None:
        if self._thread is not None:
            os.close(self._wake)
            self._thread.join(2.0)

    def _look(self) -> None:
        poll, open_for, ends = select.poll(), {}, False
        poll.register(self._wakes)
        try:
            while not ends:
                self._find(poll, open_for)
                for descriptor, _ in sorted(poll.poll(PERIOD_MS), key=lambda found: found[0] == self._wakes):
                    if descriptor == self._wakes:
                        ends = True
                        continue
                    folder, pid = open_for.pop(descriptor)
                    number = _signal_of(pid, descriptor)  # first of all: it is gone soon
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    if number:
                        merge.note_killed(folder, name_of(number))
        except (OSError, ValueError, RuntimeError):
            pass  # then it is not known
        finally:
            for descriptor in (*open_for, self._wakes):
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _find(self, poll, open_for):
        for folder in merge.member_folders(self.directory):
            pid = run_folder.who_runs(folder).get("pid") if folder not in self._known else None
            if type(pid) is not int or pid <= 0:
                continue
            self._known.add(folder)
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                continue
            poll.register(descriptor, select.POLLIN)
            open_for[descriptor] = folder, pid


def note(directory: str, pid: int, number: int) -> None:
    """Of a process of the run whose end is known."""
    for folder in merge.member_folders(directory):
        if run_folder.who_runs(folder).get("pid") == pid:
            merge.note_killed(folder, name_of(number))


def of_children(directory: str) -> None:
    """The same of processes that multiprocessing made here, and whose ends it knows."""
    module = sys.modules.get("multiprocessing.process")
    for process in list(getattr(module, "_dangling", ())) if os.path.isdir(directory) else ():
        try:
            if process.pid is not None and process.exitcode is not None and process.exitcode < 0:
                note(directory, process.pid, -process.exitcode)
        except (AssertionError, AttributeError, OSError, ValueError):  # another process's, or closed
            continue
