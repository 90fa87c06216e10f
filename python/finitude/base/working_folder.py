"""The working directory, which may be removed while a program runs: then it has no path, and `os.getcwd` and all that
needs it raise. A path stays as it is there."""

from __future__ import annotations

import os


def current() -> str:
    """Empty where there is none any more."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:
        return path


def relative(path: str) -> str:
    """As seen from here."""
    try:
        return os.path.relpath(path)
    except (OSError, ValueError):
        return path
