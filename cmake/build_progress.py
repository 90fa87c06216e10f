"""What a build shows of itself. pip and uv keep what a backend prints to themselves unless they are called with -v, and
compiling takes minutes, so a line goes to the terminal now and then."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator

STATUS = "[%f/%t %es] "  # of ninja: files done, files, seconds
LINE = re.compile(rb"\[(\d+)/(\d+) ")
EVERY = 15  # seconds


@contextlib.contextmanager
def shown(title: str) -> Iterator[None]:
    """While it is open, ninja counts and times, and the terminal shows how far it is, unless stdout is a terminal."""
    os.environ.setdefault("NINJA_STATUS", STATUS)
    terminal = None if os.isatty(1) else _terminal()
    os.write(1, f"finitude: {title}\n".encode())
    _line(terminal, title)
    started = time.monotonic()
    kept = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    thread = threading.Thread(target=_pass_on, args=(reading, kept, terminal, started))
    thread.start()
    try:
        yield
        took = time.monotonic() - started
        os.write(kept, f"finitude: built in {took:.0f} s\n".encode())
        _line(terminal, f"built in {took:.0f} s")
    finally:
        os.dup2(kept, 1)  # ends the pipe
        thread.join()
        os.close(kept)
        if terminal is not None:
            os.close(terminal)


def _terminal() -> int | None:
    try:
        return os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return None


def _line(terminal: int | None, text: str) -> None:
    if terminal is not None:
        with contextlib.suppress(OSError):
            os.write(terminal, f"\r\n  finitude: {text}\r\n".encode())


def _pass_on(reading: int, kept: int, terminal: int | None, started: float) -> None:
    last = started
    with open(reading, "rb") as lines:
        for line in lines:
            os.write(kept, line)
            if line.startswith(b"page: "):  # what the build goes without
                _line(terminal, line.decode(errors="replace").strip())
            found = LINE.match(line)
            if found and time.monotonic() - last >= EVERY:
                last = time.monotonic()
                _line(terminal, f"{int(found[1])} of {int(found[2])} compiled, {last - started:.0f} s")
