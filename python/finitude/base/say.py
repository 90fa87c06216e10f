"""Standard error as a guest uses it: a program may have none, may have closed it, or may have put an object of its own
in its place."""

from __future__ import annotations

import contextlib
import io
import os
import sys

STANDARD_ERROR = 2


def _stream():
    """None as well where a file that the program opened has the number of a standard error that it closed: such files
    are not inherited, a standard error is (also one that os.dup2 has put there)."""
    stream = getattr(sys, "stderr", None)
    if type(stream) is io.TextIOWrapper and not stream.closed and stream.fileno() == STANDARD_ERROR:
        return stream if os.get_inheritable(STANDARD_ERROR) else None
    return stream


def say(text: str) -> None:
    """Writes the text, where something takes it. Raises nothing."""
    with contextlib.suppress(Exception):
        stream = _stream()
        if type(stream) is not io.TextIOWrapper:
            stream.write(text)
            return stream.flush()
        # Past its buffer: what a full disk refuses would stay in there, and end the program with 120 at its last flush.
        stream.flush()
        data = memoryview((_to_new_line() + text).encode(stream.encoding, "backslashreplace"))
        while data:
            data = data[os.write(stream.fileno(), data) :]


def is_terminal() -> bool:
    try:
        return bool(_stream().isatty())
    except Exception:
        return False


def has_colour() -> bool:
    return is_terminal() and not os.environ.get("NO_COLOR")


def has_unicode() -> bool:
    encoding = getattr(getattr(sys, "stderr", None), "encoding", None)
    return isinstance(encoding, str) and encoding.lower().replace("-", "").startswith("utf")


def width() -> int:
    """Columns of the terminal; 80 where there is none, or it does not say."""
    try:
        return is_terminal() and os.get_terminal_size(_stream().fileno()).columns or 80
    except Exception:
        return 80


def _to_new_line() -> str:
    """Blanks that bring the cursor of a terminal to the beginning of a line, the next one where a progress bar is in
    this one: as many as a line has go into the next line from any column but the first."""
    return " " * width() + "\r" if is_terminal() and os.environ.get("TERM") != "dumb" else ""


def flush() -> None:
    """Standard output and standard error."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(Exception):
            getattr(sys, name).flush()


def printable(text: str) -> str:
    """With a question mark for each character that a terminal would act upon: a text of a file may be anyone's."""
    return "".join(c if c.isprintable() else "?" for c in text)
