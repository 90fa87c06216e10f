"""The timeline of a run as a part of the page of its report."""

from __future__ import annotations

import os

from ..base import pages, plain_file
from ..store import reader, runs
from . import document, page

END_SECONDS = 0.3  # of CPU, that the end of a run may take for it
END_MAP_BYTES = 8 << 20  # of a store whose map it reads
MOST_BYTES = 256 << 20  # of a page


def add(run: str, path: str, is_ending: bool = False) -> bool:
    """Puts it into the page at `path`. is_ending: a program waits, so the map of parameters or all is omitted where
    that takes long. False, and the page stays as it is: the run has no store, or the page is one of tables. Raises
    OSError, UnicodeError."""
    limits = document.Limits(END_SECONDS, END_MAP_BYTES) if is_ending else None
    if not any(os.path.isfile(os.path.join(folder, reader.NAME)) for folder in runs.processes(run)):
        return False
    with plain_file.opened(path) as f:
        data = plain_file.first(f, MOST_BYTES + 1)
    text = data.decode() if len(data) <= MOST_BYTES else ""
    if page.REPORT_MARK not in text:
        return False
    try:
        content = document.still(run, limits)
    except document.TooMuch:
        return False
    pages.write_whole(path, page.with_timeline(text, content).encode())
    return True
