"""Text from elsewhere, for a reader who acts on it: of one line, without control characters and secrets, and short."""

from __future__ import annotations

import re

from ..base import secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 16 << 10  # bytes of an answer
LONG = 600  # characters of one text in it
_SEEN = 64  # times that, which are looked at: a pattern for secrets takes its time on each character
EXIT_INPUT, EXIT_CANNOT = 3, 4


class Refused(Exception):
    """Why there is no answer, in one line; `code` as the command line exits with it."""

    def __init__(self, why: str, code: int = EXIT_INPUT):
        super().__init__(why)
        self.code = code


_COLOUR = re.compile(r"(?:\x1b\[|\x9b)[0-9;:?]{0,32}[ -/]{0,4}[@-~]")  # a letter of it would hide the name of a secret


def printable(text: str) -> str:
    """Without control characters and those that turn or hide what follows."""
    return "".join(c if c.isprintable() else " " if c in "\t\r\n" else "?" for c in _COLOUR.sub(" ", text))


def clipped(text: str, most: int = LONG) -> str:
    """At most so many characters; three dots say that there were more."""
    return text if len(text) <= most else text[: max(0, most - 3)] + "..."


def line(value: Any, most: int = LONG) -> str:
    """A value from a file as one line."""
    text = clipped(printable(str("" if value is None else value)), LONG * _SEEN)
    return clipped(secrets.masked(text), most)


def source(value: Any, most: int = 200) -> str:
    """A line of a program."""
    text = clipped(printable(str("" if value is None else value)), LONG * _SEEN)
    return clipped(secrets.masked_source(text), most)


def lines(value: Any, most: int = 40, width: int = 160) -> str:
    """Several lines of a program, such as a diff."""
    every = str("" if value is None else value)[: LONG * _SEEN].split("\n")
    shown = [source(one, width) for one in every[:most]]
    return "\n".join(shown + [f"... {len(every) - most} more lines"] * (len(every) > most))


def within(text: str, most: int = MOST) -> str:
    """A text of several lines in at most so many bytes of UTF-8: whole lines from its beginning, and how many bytes
    were cut."""
    text = "\n".join(printable(one) for one in text.split("\n"))
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    kept = data[: most - 80].decode("utf-8", "ignore").rsplit("\n", 1)[0]
    return f"{kept}\n[cut: {len(data) - len(kept.encode())} of {len(data)} bytes are not shown]\n"
