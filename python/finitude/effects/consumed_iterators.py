"""What the program reads one thing after the other: files, readers, cursors, iterators that no name or loop holds.

The rewind sets names and loops back, not the position of such an object: a second run would read what comes next, and
meet the end of the data where the bad batch was the last. So a window that may have read from one is not run again in
place. Where it is run again (a data set reads its file by index), each is put back to where the first run left it."""

from __future__ import annotations

import gc
import inspect
import io
import itertools
import types
import weakref

import torch

from .. import _native
from ..base import compat
from ..base._places import is_library
from ..base.kinds import is_a
from ..program import optimizer_members
from . import channels, name_liveness
from .known_libraries import HANDS_ON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType
    from typing import Any

ENDLESS = (itertools.count, itertools.cycle, itertools.repeat)
PLAIN = (int, float, complex, str, bytes, bool, type(None))
IN_MEMORY = (io.BytesIO, io.StringIO)
MOST_INNER = 200  # objects between an iterator and the loader that it draws from
MOST_DEPTH = 8  # of iterators that draw from others
MOST_BYTES = 16 << 20  # of a file in memory


class Drawn:
    def __init__(self):
        self.once = []  # names of what this window may have read from, and nothing sets back
        self._set_back, self._still = (
            set(),
            set(),
        )  # ids: by the rewind; not moved since the window began, as it has seen
        self._files, self._memory, self._figures = [], [], []
        self._by_index = set()
        self._kept = []

    def in_frame(self, it: Any) -> None:
        """It has a name in one of the user's frames, or a loop there draws from it."""
        if not _is_known(it) or id(it) in self._set_back:
            return
        self._kept.append(it)
        if not _goes_back(it):
            if is_a(it, types.GeneratorType) and not it.gi_running:
                self._still.add(id(it))
            return
        todo = [it]
        while todo:
            inner = todo.pop()
            if id(inner) not in self._set_back:
                self._set_back.add(id(inner))
                todo.extend(i for i in _drawn_by(inner) if _is_known(i))

    def held_by(self, it: Any, values: Iterable[Any]) -> None:
        """An object that is asked for things by their number, and not for the next, reads its files from where it goes
        to."""
        if hasattr(type(it), "__getitem__") and not _iterates(it):
            for value in values:
                inner = value if is_a(value, (list, tuple)) else value.values() if type(value) is dict else [value]
                self._by_index.update(id(v) for v in list(inner)[:MOST_INNER])

    def look(self, it: Any, name: str) -> list[Any] | None:
        """What it draws from; None: it is nothing to draw from, or it is of the program's own making."""
        if is_a(it, io.IOBase) or type(it).__module__ == "mmap":
            self._file(it, name)
            return []
        if is_a(it, (types.BuiltinMethodType, types.MethodWrapperType)) and not is_a(
            it.__self__, (types.ModuleType, type)
        ):
            return [it.__self__]
        kind = type(it)
        if hasattr(kind, "fetchone") and getattr(it, "description", True) is None:
            return []  # a cursor that has no rows to give
        if not _iterates(it):
            return gc.get_referents(it) if (kind.__module__, kind.__name__) in HANDS_ON else None
        if id(it) in self._still or is_a(it, LOADING):
            return []
        if is_a(it, types.GeneratorType):
            return self._generator(it, name)
        if optimizer_members.is_users_class(kind):  # what it holds is looked at like that of any object
            if not _leads_to_loader(it):
                self.once.append(name)
            return None
        inner = _drawn_by(it)
        if _is_known(it):
            if id(it) not in self._set_back and inner and not is_a(it, ENDLESS) and not _leads_to_loader(it):
                self.once.append(name)
        elif kind.__name__ != "callable_iterator" and not _leads_to_loader(it):
            self.once.append(name)
        return [*inner, *gc.get_referents(it)] if type(it) in (zip, map) else inner

    def _generator(self, it, name):
        frame = it.gi_frame
        if frame is None or it.gi_running:  # running: one of the frames around us
            return []
        names, is_torchs = optimizer_members.names_of(frame), frame.f_code.co_filename.startswith(_TORCH)
        inner = [*_drawn_by(it), *names.values()]
        if id(it) in self._set_back:
            self._figures.append((it, {k: v for k, v in names.items() if type(v) in PLAIN}))
        if is_torchs or inspect.getgeneratorstate(it) == inspect.GEN_CREATED:
            return [] if is_torchs else inner
        hides = is_library(frame.f_code.co_filename) and not frame.f_code.co_filename.startswith("<")
        if (hides or id(it) not in self._set_back) and not _leads_to_loader(it):
            self.once.append(name)
        return inner

    def _file(self, it, name):
        try:
            if it.closed or is_a(it, io.IOBase) and not it.readable():
                return
        except ValueError:
            return
        if is_a(it, IN_MEMORY):
            content = it.getvalue()
            if len(content) <= MOST_BYTES:
                self._memory.append((it, content, it.tell()))
        try:
            position = it.tell()
        except (OSError, ValueError):  # text that is iterated over has no position
            self.once.append(name)
            return
        self._files.append((it, position, name))
        if position and id(it) not in self._by_index and not _is_written_at(it, position):
            self.once.append(name)

    # -- putting back --------------------------------------------------------------------------

    def put_back(self) -> list[str]:
        """Restores every position. Returns the names of what could not be restored."""
        lost = []
        for generator, figures in self._figures:
            if (frame := generator.gi_frame) is not None:
                now = optimizer_members.names_of(frame)
                if changed := {k: v for k, v in figures.items() if k in now and now[k] is not v}:
                    compat.set_names(frame, changed, PLAIN)
        for it, content, position in self._memory:
            if not it.closed and it.getvalue() != content:
                it.seek(0)
                it.truncate()
                it.write(content)
        for it, position, name in self._files:
            try:
                if it.closed or it.tell() != position:
                    it.seek(position)
            except (OSError, ValueError):
                lost.append(name)
        return lost


_TORCH = torch.__path__[0]
LOADING = torch.utils.data.dataloader._BaseDataLoaderIter  # set back by the log of batches


def is_reader(it):
    """May it be asked for one thing after the other, and does anything else not see to it?"""
    return (is_a(it, io.IOBase) or _iterates(it)) and not channels.is_one_way(it)


def idle(frame: FrameType, names: Mapping[str, Any]) -> set[str]:
    """Those of a frame's names that hold something to read from, and that nothing behind this step reads again."""
    held = [k for k, v in names.items() if is_reader(v)]
    owner = frame.f_code if optimizer_members.is_function(frame) else None
    return set(held) - set(name_liveness.will_read(frame, [(name, owner) for name in held])) if held else set()


def _iterates(it):
    return (
        hasattr(type(it), "__next__") and type(it) not in weakref.ProxyTypes
    )  # which pass on what the object may not have


def _is_known(it):
    return _native.position_is_known(it) or is_a(it, types.GeneratorType)


def _goes_back(it, depth=0):
    """Will the rewind set it back, and all that it draws from?"""
    if is_a(it, LOADING):
        return True
    if not _is_known(it) or depth > MOST_DEPTH:
        return False
    if is_a(it, types.GeneratorType):
        if it.gi_frame is None:
            return False
        named = {id(v) for v in optimizer_members.names_of(it.gi_frame).values()}
        return all(id(i) in named or _goes_back(i, depth + 1) for i in _drawn_by(it))
    return all(_goes_back(i, depth + 1) for i in _drawn_by(it) if _iterates(i))


def _drawn_by(it):
    """The iterators that it holds, and what those call that call for each value."""
    if is_a(it, types.GeneratorType):
        frame = it.gi_frame
        found = gc.get_referents(it) if frame is None else [*gc.get_referents(it), *gc.get_referents(frame)]
        return [i for i in found if _iterates(i)]
    # These two keep their iterators in a tuple, beside one of what they gave last.
    found = it.__reduce__()[1] if type(it) in (zip, map) else optimizer_members.referents(it)
    return [i for i in found if not is_a(i, (type, types.ModuleType))]


def _leads_to_loader(it):
    """Does it draw from a DataLoader, whose batches come again in a second run?"""
    todo, seen, kept = [it], set(), []
    while todo and len(kept) < MOST_INNER:
        it = todo.pop()
        if id(it) in seen or is_a(it, (*PLAIN, type, types.ModuleType, torch.Tensor)):
            continue
        seen.add(id(it))
        kept.append(it)
        if is_a(it, (torch.utils.data.DataLoader, LOADING)):
            return True
        if is_a(it, types.GeneratorType):
            todo.extend(
                [*_drawn_by(it), *(optimizer_members.names_of(it.gi_frame).values() if it.gi_frame is not None else ())]
            )
        elif is_a(it, (list, tuple)):
            todo.extend(list(it)[:MOST_INNER])
        elif is_a(it, dict):
            todo.extend(list(dict.values(it))[:MOST_INNER])
        elif _iterates(it) or optimizer_members.is_users_class(type(it)):
            todo.extend(optimizer_members.held_by(it) if optimizer_members.is_users_class(type(it)) else _drawn_by(it))
    return False


def _is_written_at(it, position):
    """A file for both whose position is its end was written to."""
    try:
        if not it.writable():
            return False
        end = it.seek(0, io.SEEK_END)
        it.seek(position)
        return position == end
    except (AttributeError, OSError, ValueError):
        return False
