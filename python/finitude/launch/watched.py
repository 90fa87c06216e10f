"""What every watched process has in common, however it came to be watched."""

from __future__ import annotations

import functools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.types import Config


def begin_selftest(settings: Config) -> None:
    """In the processes that `finitude selftest` starts, and nowhere else: before anything observes a step."""
    if settings.selftest:
        from ..selftest import inside

        inside.begin(settings.selftest)


def why_not() -> str | None:
    """Why the program cannot be watched here, in one line, or None."""
    try:
        import torch
    except Exception as e:  # an OSError where a library of torch's is missing
        return f"torch cannot be imported ({_one_line(e)})"
    from ..base import engines

    try:
        why = engines.why_none(torch.__version__)
        if why is None:
            from .. import _native  # noqa: F401
            from ..session import install, session  # noqa: F401
    except ImportError as e:  # a name or a symbol that this torch does not have
        why = f"the engine does not load with torch {torch.__version__} ({_one_line(e)})"
    return why


def _one_line(error):
    return " ".join(str(error).split())


def on_exit_without_unwinding(end: Callable[[str], None]) -> None:
    """os._exit skips every cleanup; what was seen is written first. end: writes it, in this process."""
    leave, pid = os._exit, os.getpid()

    @functools.wraps(leave)
    def _exit(status):
        if os.getpid() == pid:
            try:
                end("os._exit ended the program")
            except Exception:
                pass
        leave(status)

    os._exit = _exit
