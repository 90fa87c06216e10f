"""Which process it was, and whether it is still there: a number alone may be another one's by now."""

from __future__ import annotations

import os

from . import checked_json, plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .types import Process


def _line(path):
    try:
        with plain_file.opened(path) as f:
            return f.read(4096).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _machine():
    """This boot of this machine, and what the numbers of processes count in; "0": not known. The same as
    src/base/process_posix.cpp makes."""
    boot = _line("/proc/sys/kernel/random/boot_id")
    try:
        space = os.readlink("/proc/self/ns/pid")
        if not boot or os.readlink("/proc/self") != str(os.getpid()):
            return "0"
    except OSError:
        return "0"
    return f"{checked_json.checksum(f'{boot} {space}'.encode()):016x}"


def _state(pid):
    """(its letter, when it began in ticks since the machine did); ("", 0): not known."""
    fields = _line(f"/proc/{pid}/stat").rpartition(")")[2].split()  # its name may hold anything
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return "", 0


def me() -> Process:
    """This process, for `is_alive`."""
    return {"pid": os.getpid(), "start": _state(os.getpid())[1], "machine": _machine()}


def is_alive(who: Any) -> bool:
    """Is the process there that this is of? who: from a file of anyone's. False also where it may be on another
    machine."""
    if not isinstance(who, dict):
        return False
    pid, start, machine = who.get("pid"), who.get("start"), who.get("machine")
    if type(pid) is not int or not 0 < pid < 1 << 31 or machine != _machine():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    letter, began = _state(pid)
    return letter not in ("Z", "X") and (not start or not began or start == began)
