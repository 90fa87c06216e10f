"""`--checkpoints quarantine`: what the program saves while it is bad, or after growth began, goes into a folder
`quarantine` beside; the last good checkpoint stays as hard links in the run folder, whatever the program removes."""

from __future__ import annotations

import os
import shutil

from ..base import working_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..report.document import Report

FOLDER = "quarantine"  # beside the checkpoint
KEPT = "last-good"  # in the run folder
MOST_FILES = 10_000  # of a checkpoint that is a folder


class Quarantine:
    def __init__(self, report: Report):
        self._report = report
        self._moved: dict[str, str] = {}  # where the program wanted a file: where it is
        self._folder = ""  # of the files that are kept
        self._kept_of: tuple[str, int | None] | None = None  # folder and step of the kept checkpoint
        self._kept: dict[str, str] = {}  # the program's file: ours

    # -- what is bad ------------------------------------------------------------------------------

    def place_for(self, path: str) -> str:
        """Where a bad checkpoint is written in place of that path. Raises OSError."""
        folder = os.path.join(os.path.dirname(path), FOLDER)
        os.makedirs(folder, exist_ok=True)
        place = os.path.join(folder, os.path.basename(path))
        self._moved[path] = place
        return place

    def replaces(self, rename: Callable[..., None]) -> Callable[..., None]:
        """In place of os.replace and os.rename: a file in quarantine stays there, under its new name. Programs write
        beside, and rename what is whole."""

        def renamed(src: Any, dst: Any, **more: Any) -> None:
            place = self._moved.pop(_absolute(src), None) if self._moved and not more else None
            if place is None or not os.path.lexists(place):
                rename(src, dst, **more)
                return
            target = _absolute(dst)
            rename(place, self.place_for(target))

        return renamed

    def forget(self, path: str) -> None:
        """The program writes there again."""
        self._moved.pop(path, None)

    # -- what is good -----------------------------------------------------------------------------

    def part_from(self, path: str) -> None:
        """The program is about to write there: what is kept of that path must not be written over. Raises OSError."""
        kept = self._kept.get(path)
        if kept is None or os.path.islink(path) or not os.path.exists(path):
            return
        for there, ours in _files(path, kept):
            if os.path.exists(ours) and os.path.exists(there) and os.path.samefile(there, ours):
                os.unlink(there)

    def keep(self, path: str, step: int | None, has_weights: bool) -> None:
        """A good one was written. Files of one folder and step belong together; the set begins with the weights, and
        the one before goes then."""
        of = os.path.dirname(path), step
        if not has_weights and of != self._kept_of:
            return
        run = self._report.run_directory()
        if not run or os.path.islink(path):
            return
        folder = self._folder
        if of != self._kept_of:
            folder = os.path.join(run, KEPT, f"step-{step}")
            if folder == self._folder:
                folder += "-again"
        ours = os.path.join(folder, os.path.basename(path))
        try:
            _remove(ours)
            os.makedirs(os.path.dirname(ours), exist_ok=True)
            for there, here in _files(path, ours):
                os.makedirs(os.path.dirname(here), exist_ok=True)
                os.link(there, here)
        except OSError as e:
            _remove(ours)
            self._report.complain(f"--checkpoints quarantine keeps no link to {path}: {e.strerror or e}")
            return
        before, self._folder = self._folder, folder
        if of != self._kept_of:
            self._kept_of, self._kept = of, {}
            if before:
                _remove(before)
        self._kept[path] = ours

    def kept(self, path: str) -> str | None:
        """Where the checkpoint of that path is kept."""
        return self._kept.get(path)


def _absolute(path):
    return working_folder.absolute(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""


def _files(path, ours):
    """[(file of the program, its place in the run folder)] of a file, or of a folder with files."""
    if not os.path.isdir(path):
        return [(path, ours)]
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            there = os.path.join(folder, name)
            found.append((there, os.path.join(ours, os.path.relpath(there, path))))
            if len(found) > MOST_FILES:
                raise OSError(f"it has more than {MOST_FILES} files")
    return found


def _remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
