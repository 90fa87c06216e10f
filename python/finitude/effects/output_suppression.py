"""The second run says nothing: what it writes to stdout and stderr, or shows in a notebook, is dropped."""

from __future__ import annotations

import contextlib
import os
import sys

from ..base.patches import Patches
from ..base.robust import in_any_case
from ..base.say import flush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MUTED = []  # functions that return (object, name of a method) to silence as well, or None


HELD = []  # what a second run holds back, each with an `end`: let go of by whoever finds that the second run is over


def let_go() -> None:
    """Of everything: after an internal failure the program has to have its streams and files again."""
    while HELD:
        it = HELD.pop()
        try:
            it.end()
        except BaseException:  # the others are let go of all the same, and descriptors lead again where they led
            while it.swapped:
                fd, copy, inherited, *_ = it.swapped.pop()
                os.dup2(copy, fd, inherited)
                os.close(copy)


def is_over(it: Any) -> None:
    if it in HELD:
        HELD.remove(it)


def _nothing(*args, **kwargs):
    return 0


class _Nowhere:
    """For a stream whose own methods cannot be replaced."""

    def __init__(self, stream):
        self._stream = stream

    write = writelines = _nothing

    def __getattr__(self, name):
        return getattr(self._stream, name)


def _is_descriptor(stream, number):
    try:
        return stream.fileno() == number
    except (OSError, ValueError, AttributeError):
        return False


class Quiet:
    """Holds what the second run writes to stdout and stderr back, and drops it."""

    def __init__(self):
        # swapped: (descriptor, copy of what it was, do processes that are started inherit it)
        self.swapped, self._methods, self._streams = [], Patches(), []
        HELD.append(self)
        flush()
        for fd in (1, 2):
            with contextlib.suppress(OSError):  # it is closed, or no descriptor is left
                self._swap(fd)
        quiet = [fd for fd, *_ in self.swapped]
        for name, number in (("stdout", 1), ("stderr", 2)):
            stream = getattr(sys, name, None)
            # A notebook's, one of the script's own, or one that still leads where it led.
            if stream is not None and not (number in quiet and _is_descriptor(stream, number)):
                self._mute_stream(name, stream)
        for find in MUTED:
            if (found := find()) is not None:
                self._mute(*found)

    def _swap(self, fd):
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            self.swapped.append((fd, os.dup(fd), os.get_inheritable(fd)))
            os.dup2(sink, fd)
        finally:
            os.close(sink)

    def _mute_stream(self, name, stream):
        try:
            self._mute(stream, "write")  # whoever holds the stream itself is held as well
        except AttributeError:
            self._streams.append((name, stream))
            setattr(sys, name, _Nowhere(stream))

    def _mute(self, owner, name):
        self._methods.set(owner, name, _nothing)

    def end(self) -> None:
        is_over(self)
        try:
            in_any_case(flush, self._end_streams, self._methods.undo)
        finally:
            while self.swapped:  # whatever has failed before: else the program's output is lost from here on
                fd, copy, inherited = self.swapped.pop()
                os.dup2(copy, fd, inherited)
                os.close(copy)

    def _end_streams(self):
        while self._streams:
            setattr(sys, *self._streams.pop())
