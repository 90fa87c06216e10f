"""The standard streams of a word that prints, and Ctrl-C.

Where standard output takes no more (a full disk, a closed descriptor) the word ends with one line that says so: half a
report that is taken for a whole one, and a traceback of Finitude, are both of no use. What cannot be said on standard
error is not said."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

PATIENCE = 1.0  # seconds for a Ctrl-C to be heard: an engine that computes hears nothing


class Unwritten(Exception):
    """Standard output took no more, and why."""


class _Stream:
    """Stands for sys.stdout or sys.stderr; stream: None where its descriptor was closed before we began."""

    def __init__(self, stream, is_output):
        self._stream, self._is_output = stream, is_output

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    @property
    def encoding(self) -> Any:
        return getattr(self._stream, "encoding", None)

    def write(self, text: str) -> int:
        try:
            self._try("write", text)
        except UnicodeEncodeError:  # names and paths of the program, in a locale without them
            encoding = self.encoding or "ascii"
            self._try("write", text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._try("flush")

    def _try(self, what: str, *arguments: Any) -> None:
        try:
            if self._stream is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            getattr(self._stream, what)(*arguments)
        except BrokenPipeError:
            raise  # who reads has gone, which is no failure
        except OSError as e:
            _let_go(self._stream)
            if self._is_output:
                raise Unwritten(e.strerror or str(e)) from None


def _let_go(stream):
    """What the stream still holds goes nowhere: the interpreter writes it as it ends, and would fail again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """While a word prints. May raise Unwritten; its last words are written when it ends without an exception."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(before[0], True), _Stream(before[1], False)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def nobody_reads() -> bool:
    """Has the reader of our standard output or of our standard error closed it?"""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            poll.register(stream.fileno(), 0)
        except (OSError, ValueError, AttributeError):  # no file of the system
            pass
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def end_of(number: int) -> None:
    """Ends this process of a signal, as any other tool would: a shell then knows why."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def interruptible(cleared: Callable[[], Any]) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt; where the engine is computing and nothing of Python's runs, the process ends at
    once, and before that calls `cleared`."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    heard = threading.Event()

    def hear(number, frame):
        heard.set()
        signal.default_int_handler(number, frame)

    def listen():
        while data := os.read(reader, 64):
            if signal.SIGINT in data and not heard.wait(PATIENCE):
                with contextlib.suppress(Exception):
                    cleared()
                os._exit(128 + signal.SIGINT)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGINT, hear)
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(writer)
        listener.join()
        os.close(reader)
