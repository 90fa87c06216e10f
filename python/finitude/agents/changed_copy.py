"""A copy of a program's folder in a temporary directory, with one file changed. The user's files are only read."""

from __future__ import annotations

import os
import re
import shutil

from ..base import plain_file
from . import text
from .roots import is_below
from .text import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_BYTES = 256 << 20  # of all copied files
MOST_FILES = 20_000
MOST_FILE = 64 << 20  # larger ones are data: not copied
MOST_SOURCE = 4 << 20  # bytes of the file to change, and of a change
_SKIPPED = {
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", "finitude-runs", "wandb", "lightning_logs",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox",
}  # fmt: skip


def copy(folder: str, to: str, links: Sequence[str] = ()) -> list[str]:
    """Copies the folder, without what no program imports, and links `links`, directories of data that are read where
    they are. Returns what was not copied for its size. Raises Refused."""
    skipped, count, size = [], 0, 0
    linked = {os.path.realpath(d) for d in links}
    for path, relative, is_folder in _entries(folder, linked):
        target = os.path.join(to, relative)
        if os.path.realpath(path) in linked:
            os.symlink(path, target)
            continue
        if is_folder:
            os.makedirs(target, exist_ok=True)
            continue
        bytes_of = os.stat(path).st_size
        count += 1
        if count > MOST_FILES:
            raise Refused(f"the program's folder {text.line(folder, 200)} holds more than {MOST_FILES} files")
        if bytes_of > MOST_FILE or size + bytes_of > MOST_BYTES:
            skipped.append(relative)
            continue
        size += bytes_of
        shutil.copyfile(path, target)
        shutil.copymode(path, target)
    return skipped


def _entries(folder, linked, below=""):
    """(path, path in the folder, whether it is a folder): a folder before what it holds. Links that lead out of the
    folder, pipes and devices are not followed."""
    try:
        with os.scandir(os.path.join(folder, below)) as found:
            entries = sorted(found, key=lambda e: e.name)
    except OSError:
        return
    for entry in entries:
        relative = os.path.join(below, entry.name)
        real = os.path.realpath(entry.path)
        if real in linked:
            yield entry.path, relative, False
        elif entry.name in _SKIPPED or entry.is_symlink() and not is_below(real, folder):
            continue
        elif entry.is_dir(follow_symlinks=False):
            yield entry.path, relative, True
            yield from _entries(folder, linked, relative)
        elif entry.is_file():
            yield entry.path, relative, False


def replaced(source: str, old: str, new: str) -> str:
    """The source with the one place that reads `old` replaced. Raises Refused where there is none, or several."""
    if not old:
        raise Refused("old is empty: give the lines to replace, as they are in the file")
    count = source.count(old)
    if count != 1:
        where = "is not in the file" if not count else f"is in the file {count} times: give more lines around it"
        raise Refused(f"old {where}; nothing was changed")
    if old == new:
        raise Refused("old and new are the same")
    return source.replace(old, new)


_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,\d{1,9})? @@")


def patched(source: str, diff: str) -> str:
    """The source with a unified diff of one file applied: each hunk at its line or, where the lines have moved, at the
    only place that its context fits. Raises Refused."""
    lines = source.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    moved = end = 0
    for start, before, after in _hunks(diff):
        at = _place(lines, before, start - 1 + moved, end)
        lines[at : at + len(before)] = after
        moved, end = at + len(after) - (start - 1 + len(before)), at + len(after)
    result = "".join(lines)
    return result if source.endswith("\n") or not source else result.removesuffix("\n")


def _hunks(diff) -> Iterator[tuple[int, list[str], list[str]]]:
    found, files, rows = 0, 0, diff.splitlines()
    at = 0
    while at < len(rows):
        row = rows[at]
        at += 1
        files += row.startswith("--- ")
        if files > 1:
            raise Refused("the diff changes several files; try one at a time")
        match = _HUNK.match(row)
        if not match:
            continue
        found += 1
        want, before, after = int(match[2] or 1) if match[2] != "0" else 0, [], []
        while at < len(rows) and not rows[at].startswith("@@") and not rows[at].startswith("--- "):
            sign, body = rows[at][:1], rows[at][1:] + "\n"
            at += 1
            if sign in (" ", "-", ""):
                before.append(body if sign else "\n")
            if sign in (" ", "+", ""):
                after.append(body if sign else "\n")
        while len(before) > want and before[-1:] == after[-1:] == ["\n"]:  # empty rows behind the last hunk
            before.pop()
            after.pop()
        yield int(match[1]) + (want == 0), before, after
    if not found:
        raise Refused("the diff has no hunk (@@ -line,count +line,count @@)")


def _place(lines, before, wanted, end):
    if wanted >= end and lines[wanted : wanted + len(before)] == before:
        return wanted
    if not before:
        raise Refused("a hunk without context does not fit the file; nothing was changed")
    places = [i for i in range(end, len(lines) - len(before) + 1) if lines[i : i + len(before)] == before]
    if len(places) != 1:
        first = text.source("".join(before[:1]).rstrip("\n"), 120)
        why = "does not apply" if not places else "fits in several places"
        raise Refused(f"the hunk that begins with {first!r} {why}; nothing was changed")
    return places[0]


def read(path: str) -> str:
    """The source of a program. Raises Refused."""
    try:
        with plain_file.opened(path) as f:
            data = f.read(MOST_SOURCE + 1)
        if len(data) > MOST_SOURCE:
            raise Refused(f"{text.line(path, 200)} is larger than {MOST_SOURCE} bytes")
        return data.decode("utf-8")
    except OSError as e:
        raise Refused(f"{text.line(path, 200)} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"{text.line(path, 200)} is not UTF-8") from None
