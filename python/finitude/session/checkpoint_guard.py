"""The guard of checkpoints: what the program saves while it is watched is looked at before it is written. Each is an
event and counts in the report; a bad one is a line on stderr, or is refused."""

from __future__ import annotations

import functools
import os
import sys
import threading

import torch

from .. import _native
from ..base import working_folder
from ..base.say import say
from ..effects import fork_dry_run, output_suppression
from ..effects.known_libraries import CHECKPOINTS
from ..errors import NonFiniteError
from ..program import optimizer_members
from ..report.checkpoints import AFTER_ONSET, BAD, GOOD
from ..report.saved_values import look
from . import native_callbacks
from .quarantine import Quarantine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Config, Optimizer, Patches
    from ..report.document import Report

MOST_LINES = 10  # on stderr; later ones are in events.jsonl
_under_way = threading.local()  # DCP calls torch.save for each tensor


class CheckpointGuard:
    def __init__(self, config: Config, report: Report, part: Callable[..., Any]):
        """part: calls what it is given, and notes an internal failure."""
        self._mode, self._report, self._in_guard = config.checkpoints, report, part
        self._quiet = bool(config.quiet)
        self._lines = 0
        self.quarantine = Quarantine(report) if config.checkpoints == "quarantine" else None

    def is_on(self) -> bool:
        is_again = bool(output_suppression.HELD) or fork_dry_run.is_under_way()
        return self._mode != "off" and self._report.is_kept and not is_again

    def save(self, write: Callable[[str | None], Any], path: str, saved: Any, is_path: bool) -> Any:
        """Calls `write` with None, or with another path in place of the program's, and notes the file. is_path: the
        program gave a path, and can be given another one. NonFiniteError: it is bad and was refused; nothing has been
        written."""
        is_url = "://" in path  # Lightning writes to these too
        path = path if is_url else working_folder.absolute(path)
        quarantine = self.quarantine if is_path and not is_url else None
        step = self._in_guard(self._steps_before)
        looked = self._in_guard(self._values_of, saved)
        if looked is None or not looked.has_values:  # of a scheduler, say
            return self._write_at(write, path, None)
        why = looked.why_bad
        if why and self._mode == "refuse":
            text = f"the checkpoint {path} was refused and not written: {why}"
            self._in_guard(self._note_one, path, step, BAD, text, is_written=False)
            raise NonFiniteError(f"finitude: {text}")
        onset = self._in_guard(self._report.growth_began)
        place = None
        if quarantine is not None and (why or onset is not None):
            place = self._in_guard(quarantine.place_for, path)
        result = self._write_at(write, path, place)
        path = place or path
        if why:
            verdict, text = BAD, f"the checkpoint {path} is bad: {why}"
        elif onset is not None:
            verdict = AFTER_ONSET
            text = f"the checkpoint {path} is finite, but was written after growth that began at step {onset}"
        else:
            verdict, text = GOOD, f"the checkpoint {path} holds finite values"
        if quarantine is not None and verdict == GOOD:
            self._in_guard(quarantine.keep, path, step, looked.has_weights)
        self._in_guard(self._note_one, path, step, verdict, text, has_weights=looked.has_weights)
        return result

    def _write_at(self, write, path, place):
        if self.quarantine is not None and place is None:
            self.quarantine.forget(path)
            self._in_guard(self.quarantine.part_from, path)
        return write(place)

    def _steps_before(self):
        """Steps before it, of the optimizer that has taken most."""
        return max((_native.window(optimizer)["step"] for optimizer in _stepping()), default=None)

    def _values_of(self, saved):
        with optimizer_members.Standing():
            optimizers = _stepping()
            buffers = {name for one in optimizers for name, _ in optimizer_members.buffers(one)}
            parameters = {name for one in optimizers for name in optimizer_members.names(one)}
        return look(saved, buffers, parameters)

    def _note_one(self, path, step, verdict, text, is_written=True, has_weights=True):
        kept = self.quarantine.kept(path) if self.quarantine is not None else None
        self._report.note_checkpoint(path, step, verdict, text, is_written, has_weights, kept)
        if verdict == GOOD or not is_written:  # NonFiniteError says it
            return
        self._lines += 1
        if self._lines <= MOST_LINES and not self._quiet:
            last = "; further ones are only recorded" if self._lines == MOST_LINES else ""
            good = self._report.last_good_checkpoint()
            before = f"; the last good one is {good['checkpoint']}" if good else ""
            say(f"finitude: warning: {text}{before}{last}\n")


def _stepping() -> list[Optimizer]:
    return [one for one in optimizer_members.instances(torch.optim.Optimizer) if _native.is_registered(one)]


def watch(patches: Patches) -> None:
    """Puts the guard around the functions that write checkpoints, of libraries that are imported by now. Cheap where
    nothing is new."""
    guards = {}
    for module, name, saved, path in CHECKPOINTS:
        original = getattr(sys.modules.get(module), name, None)
        if callable(original) and not hasattr(original, "finitude_guard"):
            guards[original] = _guarded(original, saved, path)
    if not guards:
        return
    # Also under another name: `from safetensors.torch import save_file as save`.
    for holder, attribute, original in _native.holders(tuple(guards)):
        patches.set(holder, attribute, guards[original])


def _guarded(original, saved, path):
    """saved, path: names of parameters; the first two, where they are given by position."""

    @functools.wraps(original)
    def save(*args, **kwargs):
        session = native_callbacks.session
        guard = getattr(session, "checkpoint_guard", None)
        if guard is None or getattr(_under_way, "is_so", False) or os.getpid() != session.pid or not guard.is_on():
            return original(*args, **kwargs)
        given = dict(zip((saved, path), args)) | kwargs
        file = _path_of(given.get(path), kwargs.get("storage_writer"))
        if file is None:
            return original(*args, **kwargs)

        def write(place):
            if place is None:
                return original(*args, **kwargs)
            if path in kwargs:
                return original(*args, **{**kwargs, path: place})
            return original(args[0], place, *args[2:], **kwargs)

        is_path = isinstance(given.get(path), (str, os.PathLike)) and kwargs.get("storage_writer") is None
        _under_way.is_so = True
        try:
            return guard.save(write, file, given.get(saved), is_path)
        finally:
            _under_way.is_so = False

    save.finitude_guard = True  # type: ignore[attr-defined]
    return save


def _path_of(given, writer):
    """Of a path, an open file, or what DCP writes with; None of memory and the like."""
    if str(getattr(given, "name", "")).endswith(".distcp"):  # a part, which DCP writes
        return None
    for one in (given, getattr(given, "name", None), getattr(writer, "path", None)):
        if isinstance(one, (str, os.PathLike)):
            return os.fspath(one)
    return None
