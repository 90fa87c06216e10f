"""Standard output as a command sees it: a terminal or not, how wide, and whether it takes colours."""

from __future__ import annotations

import os
import sys

LEAST, MOST = 24, 160  # columns, as finitude-offline has it


def is_terminal() -> bool:
    try:
        return bool(sys.stdout.isatty())
    except Exception:  # None, or an object of a program's own
        return False


def columns(otherwise: int) -> int:
    """Of the terminal; `otherwise` where there is none."""
    try:
        return min(max(os.get_terminal_size(sys.stdout.fileno()).columns or otherwise, LEAST), MOST)
    except (OSError, ValueError, AttributeError):
        return otherwise


def has_colour() -> bool:
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def has_unicode() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
