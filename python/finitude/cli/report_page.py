"""`finitude report RUN --html OUT`: the page that the program finitude-offline writes, with the timeline of the run."""

from __future__ import annotations

import os
import sys

from ..base import pages
from . import offline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BYTES = 256 << 20
EXIT_CANNOT = 4
_FLAGS = ("--json", "--no-colour", "--no-color", "-q", "--quiet")


def write(rest: Sequence[str]) -> int:
    """As `report` does; without a store.sqlite the page stays as that program wrote it."""
    path, out, words = "", "", list(rest)
    while words:
        word = words.pop(0)
        name, eq, value = word.partition("=")
        if name == "--html":
            out = value if eq else words.pop(0) if words else ""
        elif word.startswith("-") and word not in _FLAGS:
            return offline.read("report", rest)  # which says what is wrong
        elif not word.startswith("-"):
            path = word
    if not path and out:
        found, code = offline.newest("run", 1, any(word in _FLAGS[-2:] for word in rest))
        if not found:
            return code
        path = found[0]
        rest = [path, *rest]
    code = offline.read("report", rest)
    run = path if os.path.isdir(path) else os.path.dirname(path)
    if code == 0 and os.path.isfile(out) and run:
        return _add_timeline(run, out)
    return code


def _add_timeline(run, out):
    from ..live import document, page
    from ..store import reader, runs

    if not any(os.path.isfile(os.path.join(folder, reader.NAME)) for folder in runs.processes(run)):
        return 0
    try:
        with open(out, encoding="utf-8") as f:
            text = f.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            return 0
        pages.write_whole(out, page.with_timeline(text, document.still(run)).encode())
    except (OSError, UnicodeError) as e:
        sys.stderr.write(f"finitude: the timeline could not be put into {out}: {e}\n")
        return EXIT_CANNOT
    return 0
