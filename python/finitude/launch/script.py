"""Runs the user's script as Python would, watched. Output, exit code and traceback are what they would be without
us."""

from __future__ import annotations

import builtins
import contextlib
import os
import pkgutil
import signal
import sys
import types

from ..base import HOME, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any


class Ended(Exception):
    """How the program ended: an exit code, or the exception it died of."""

    def __init__(self, code: Any = 0, error: BaseException | None = None, exit: SystemExit | None = None):
        super().__init__()
        self.code, self.error, self.exit = code, error, exit


def _importer(path):
    """What finds `__main__` in a folder or an archive (zipapp); None for a script."""
    return pkgutil.get_importer(path)


def first_on_path(path: str) -> str:
    """What Python puts first on sys.path where it runs this script, folder or archive."""
    path = os.path.abspath(path)
    return os.path.dirname(path) if _importer(path) is None else path


def _load(path):
    """The script's code object; raises OSError or SyntaxError as the interpreter would meet them."""
    with open(path, "rb") as f:
        if (code := pkgutil.read_code(f)) is not None:  # a .pyc
            return code
        f.seek(0)
        source = f.read()
    return compile(source, path, "exec", dont_inherit=True)


def _exec(code, path, spec=None):
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins, __annotations__={}, __cached__=None, __spec__=spec)
    if spec is not None:
        main.__dict__.update(__loader__=spec.loader, __package__="", __cached__=spec.cached)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _run_path(path):
    importer = _importer(path)
    if importer is None:
        return _exec(_load(path), path)
    spec = importer.find_spec("__main__")
    _exec(spec.loader.get_code("__main__"), spec.origin, spec)


def _trim(traceback: TracebackType | None) -> TracebackType | None:
    """Drops our own frames from the outer end of a traceback."""
    while traceback is not None and os.path.abspath(traceback.tb_frame.f_code.co_filename).startswith(HOME + os.sep):
        traceback = traceback.tb_next
    while traceback is not None and "runpy" in traceback.tb_frame.f_code.co_filename:
        traceback = traceback.tb_next
    return traceback


def run_program(target: str, is_module: bool) -> Ended:
    """Runs it to its end. Returns the Ended that says how."""
    try:
        if is_module:
            import importlib.util
            import runpy

            try:
                missing = importlib.util.find_spec(target) is None
            except ImportError:
                missing = True
            if missing:
                say.say(f"{sys.executable}: No module named {target}\n")
                return Ended(1)
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            _run_path(target)
        return Ended(0)
    except SystemExit as e:
        return Ended(e.code, exit=e)
    except BaseException as e:
        return Ended(1, e)


def finish(ended: Ended) -> None:
    """Ends this process as the program would have ended it."""
    error = ended.error
    if error is None:
        sys.exit(ended.code)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a program may have none, or have closed it
        sys.stdout.flush()
    trimmed = None if isinstance(error, SyntaxError) and error.__traceback__ is None else _trim(error.__traceback__)
    error.__traceback__ = trimmed
    # What the interpreter leaves behind for debuggers and exit functions.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trimmed
    sys.excepthook(type(error), error, trimmed)
    if isinstance(error, KeyboardInterrupt):
        # As the interpreter does: die of the signal, so that a shell sees it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


def check_script(path: str) -> int | None:
    """The interpreter's message and exit code for a script that cannot be opened, or None."""
    importer = _importer(os.path.abspath(path))
    if importer is not None:
        if importer.find_spec("__main__") is not None:
            return None
        say.say(f"{sys.executable}: can't find '__main__' module in {os.path.abspath(path)!r}\n")
        return 1
    try:
        with open(path, "rb"):
            return None
    except OSError as e:
        say.say(f"{sys.executable}: can't open file {os.path.abspath(path)!r}: [Errno {e.errno}] {e.strerror}\n")
        return 2
