"""What gives each thing once: queues between threads and processes, connections, sockets, pipes. A second run in place
would take other things out of them than the first did, and put the same in twice.

The classes written in Python note when they are used, so that one that this window left alone is known. Others
(sockets, pipes, `queue.SimpleQueue`) are always taken for used."""

from __future__ import annotations

import functools
import io
import sys
import types
import weakref

from .. import _native
from ..base.kinds import is_a
from .known_libraries import CHANNELS, SILENT_CHANNELS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Patches

_used = {}  # id: (weak reference, windows closed when it was last used)
_noting = []  # (class, names) of those whose methods note it


def watch(patches: Patches) -> None:
    """The modules that are imported by now. What comes to be known later is taken for used."""
    for module, name, methods in CHANNELS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is None or any(kind is k for k, _ in _noting) or not all(m in kind.__dict__ for m in methods):
            continue
        for method in methods:
            patches.set(kind, method, _noted(kind.__dict__[method]))
        _noting.append((kind, methods))


def forget() -> None:
    """Nothing is noted any more, or the process is a new one."""
    _used.clear()


def unwatch() -> None:
    """The methods are the program's own again."""
    _noting.clear()
    forget()


def _noted(method):
    @functools.wraps(method)
    def noted(self, *args, **kwargs):
        _note(self)
        return method(self, *args, **kwargs)

    noted.is_noted = True  # type: ignore[attr-defined]
    return noted


def _note(it):
    now, key = _native.windows_closed(), id(it)
    known = _used.get(key)
    if known is None:
        _used[key] = weakref.ref(it, lambda _: _used.pop(key, None)), now
    elif known[1] != now:
        _used[key] = known[0], now


def is_one_way(it: Any) -> bool:
    if is_a(it, io.IOBase):
        return not it.closed and it.readable() and not it.seekable()
    return any(
        (kind := getattr(sys.modules.get(module), name, None)) is not None and is_a(it, kind)
        for module, name in (*((m, n) for m, n, _ in CHANNELS), *SILENT_CHANNELS)
    )


def is_used(it: Any, since: int) -> bool:
    """May it have been used since so many windows were closed? So may one of which that was not noted."""
    if not any(is_a(it, kind) for kind, _ in _noting):
        return True
    for kind, methods in _noting:
        if is_a(it, kind) and not all(_leads_to_noted(type(it), m) for m in methods):
            ends = _ends_of(it)
            return not ends or any(is_used(end, since) for end in ends)
    known = _used.get(id(it))
    return known is not None and known[1] >= since


def _ends_of(it):
    """The connections that whatever goes through a `multiprocessing.SimpleQueue` passes, also by methods of a class of
    its own (loky's). A `Queue` keeps things in between, and its thread may hold a method from before it was noted."""
    kind = getattr(sys.modules.get("multiprocessing.queues"), "SimpleQueue", None)
    ends = [getattr(it, name, None) for name in ("_reader", "_writer")] if kind and is_a(it, kind) else []
    held = getattr(it, "__dict__", {}).values()
    return [] if None in ends or any(is_old_way_in(v) for v in held) else ends


def _leads_to_noted(kind, method):
    """An override in a class of the program's own may do without the method that notes it."""
    return getattr(getattr(kind, method, None), "is_noted", False)


def is_old_way_in(it: Any) -> bool:
    """A method that was taken off the object before it came to be noted."""
    return (
        is_a(it, types.MethodType)
        and not getattr(it.__func__, "is_noted", False)
        and any(is_a(it.__self__, kind) and it.__func__.__name__ in methods for kind, methods in _noting)
    )
