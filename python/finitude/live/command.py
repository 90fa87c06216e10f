"""`finitude live RUN|DIR`."""

from __future__ import annotations

import os
import sys

from ..base import option_words
from ..base.say import printable
from .options import HELP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4
DEFAULT = "finitude-runs"


def _usage(text):
    sys.stderr.write(option_words.usage("live", text, HELP))
    return EXIT_USAGE


def main(rest: Sequence[str]) -> int:
    """Serves until Ctrl-C."""
    if any(word in ("-h", "--help") for word in rest):
        sys.stdout.write(HELP)
        return 0
    try:
        words = option_words.Words(rest, {"--port": "--port"}, option_words.QUIET)
    except option_words.Wrong as e:
        return _usage(e)
    port, paths = words.values.get("--port", "0"), words.paths
    if not (port.isascii() and port.isdecimal()) or not 0 <= int(port) < 65536:
        return _usage(f"--port takes a number below 65536, not {port!r}")
    if len(paths) > 1:
        return _usage("one run, or one folder of runs")
    path = paths[0] if paths else os.environ.get("FINITUDE_RUNS") or DEFAULT
    return _serve(path, int(port), words.has("--quiet"), bool(paths))


def _serve(path, port, quiet, named):
    from ..store import runs
    from . import page, server

    shown = printable(path)
    if not os.path.isdir(path) and not runs.found(path):
        why = "is no run, and no folder of runs" if os.path.exists(path) else "does not exist"
        hint = "" if named else ". `finitude run` makes it; name a run or a folder of runs, or set FINITUDE_RUNS"
        sys.stderr.write(f"finitude: no run found: looked in {printable(os.path.abspath(path))}, which {why}{hint}\n")
        return EXIT_INPUT
    try:
        serving = server.Server(path, port)
    except OSError as e:
        sys.stderr.write(f"finitude: cannot listen at port {port}: {e.strerror or e}\n")
        return EXIT_CANNOT
    with serving:
        try:
            if not quiet:
                sys.stderr.write(f"finitude: showing {shown}; Ctrl-C ends this\n")
                if page.built() is None:
                    sys.stderr.write("finitude: this build was made without node: the page is a table\n")
            sys.stdout.write(serving.address() + "\n")
            sys.stdout.flush()
            serving.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass
        finally:
            serving.is_ending.set()
    return 0
