"""store.sqlite of the run folder (src/store): the course of the training, readable while it trains."""

from __future__ import annotations

import os

import torch

from .. import _native
from ..base.plain_json import is_plain
from ..base.unseen import unseen
from ..effects.files import note_own_database
from ..program import optimizer_members, ranks
from ..report import run_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import AnyTarget, Optimizer
    from ..report.document import Report

NAME = "store.sqlite"


class RunStore:
    def __init__(self, report: Report, target: AnyTarget | None, part: Callable[..., Any]):
        """target: this process explains a step of another one, and has no store. part: calls its argument, and notes an
        internal failure."""
        self._report, self._target, self._in_guard = report, target, part
        self._has_begun = self._is_open = False

    def open_files(self) -> None:
        """The ring of steps, which shows how a run ended that was killed, and the store; once."""
        if not self._has_begun:
            self._has_begun = True
            directory = self._report.run_directory() if self._target is None else self._target.directory()
            _native.open_ring(self._report.ring_in(directory))
            if self._target is None:
                self._in_guard(self.begin, directory)

    def begin(self, directory: str | None) -> None:
        """Where there is a folder that can hold it. Why it cannot is said once."""
        if not directory or not is_plain(directory):
            return
        rank, world = ranks.world()
        info = {
            "rank": rank,
            "world": world,
            "pid": os.getpid(),
            "host": "" if self._report.config.redact else os.uname().nodename,
            "started": self._report.started.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "version": _native.version,
            "torch": torch.__version__,
        }
        if self._report.config.redact:
            info["rows"] = "off"
        else:
            info.update(run_facts.job(os.environ))
        note_own_database(os.path.join(directory, NAME))
        why = _native.open_store(os.path.join(directory, NAME), {key: str(value) for key, value in info.items()})
        self._is_open = not why
        if why:
            self._report.complain(f"cannot write {NAME}: {why}")

    @unseen
    def name(self, optimizer: Optimizer) -> None:
        """Its first step comes."""
        if self._is_open:
            names = [name if is_plain(name) else repr(name) for name in optimizer_members.names(optimizer)]
            dtypes = [str(p.dtype).removeprefix("torch.") for p in optimizer_members.parameters(optimizer)]
            _native.name_in_store(_native.window(optimizer)["ordinal"], type(optimizer).__name__, names, dtypes)
        self._report.note_hyper_parameters(optimizer)

    def end(self) -> None:
        """Everything is on disk. What could not be written is said."""
        if self._is_open:
            self._is_open = False
            if why := _native.close_store():
                self._report.complain(f"{NAME} is not complete: {why}")
