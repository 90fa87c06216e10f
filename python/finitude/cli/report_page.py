"""`finitude report RUN --html OUT`: the page that the program finitude-offline writes, with the timeline of the run."""

from __future__ import annotations

import os
import sys

from ..base import option_words
from . import offline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_CANNOT = 4
_FLAGS = ("--json", "--no-colour", "--no-color", "-q", "--quiet")


def write(rest: Sequence[str]) -> int:
    """As `report` does; without a store.sqlite the page stays as that program wrote it."""
    try:
        words = option_words.Words(rest, {"--html": "--html"}, {flag: flag for flag in _FLAGS})
    except option_words.Wrong:
        return offline.read("report", rest)  # which says what is wrong
    path, out = (words.paths or [""])[-1], words.values.get("--html", "")
    if not path:
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
    from ..live import in_report

    try:
        in_report.add(run, out)
    except (OSError, UnicodeError) as e:
        sys.stderr.write(f"finitude: the timeline could not be put into {out}: {e}\n")
        return EXIT_CANNOT
    return 0
