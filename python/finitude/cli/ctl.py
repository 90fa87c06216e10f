"""`finitude ctl [RUN] KEY=VALUE...`: changes settings of a run that trains, by a file in its folder. Loads no torch."""

from __future__ import annotations

import os
import sys
import time

from ..base import config, control, option_words, plain_json
from ..base.say import printable
from ..report import merge, run_folder
from ..store import runs
from .ctl_options import HELP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SKIPS = "skip", "rollback"
_ALONE = (
    "finitude: a step that is bad on some ranks only still stops them: ranks ask one another before each step only in"
    " a run that was started with --on-alarm skip or rollback\n"
)
EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4


def main(words: Sequence[str], newest: Callable[[bool], tuple[list[str], int]]) -> int:
    """newest(is quiet): the path of the newest run, or none and the exit code."""
    if any(word in ("-h", "--help") for word in words):
        sys.stdout.write(HELP)
        return 0
    try:
        said = option_words.Words(words, {}, option_words.QUIET)
    except option_words.Wrong as e:
        return _usage(str(e))
    is_quiet, left = said.has("--quiet"), said.paths
    path = left.pop(0) if left and "=" not in left[0] else ""
    if other := next((word for word in left if "=" not in word), ""):
        return _usage(f"{other!r} is no KEY=VALUE")
    settings = {key: value for key, _, value in (word.partition("=") for word in left)}
    try:
        control.checked({key: value for key, value in settings.items() if value or key not in control.KEYS})
    except config.UsageError as e:
        return _usage(str(e))
    if not path:
        paths, code = newest(is_quiet)
        if not paths:
            return code
        path = paths[0]
    run = next(iter(runs.found(path)), "")
    if not run:
        sys.stderr.write(f"finitude: {printable(path)}: it is no run and holds none\n")
        return EXIT_INPUT
    try:
        return _change(run, settings, is_quiet) if settings else _show(run, is_quiet)
    except (config.UsageError, control.NoReader) as e:
        sys.stderr.write(f"finitude: {e}\n")
    except OSError as e:
        sys.stderr.write(f"finitude: {printable(run)}: {e.strerror or e}\n")
    return EXIT_CANNOT


def _usage(why):
    sys.stderr.write(option_words.usage("ctl", why, HELP))
    return EXIT_USAGE


def _folders(run):
    """Of the run, and of each of its processes: every one reads its own file."""
    return [run, *merge.member_folders(run)[: runs.MOST_PROCESSES]]


def _show(run, is_quiet):
    found = next(filter(None, map(control.read, _folders(run))), {})
    lines = [f"{key}={value}\n" for key, value in found.items() if key in control.KEYS]
    sys.stdout.writelines(lines)
    if not lines and not is_quiet:
        sys.stderr.write("finitude: nothing was changed so far; `finitude ctl --help` lists what can be\n")
    return 0


def _change(run, settings, is_quiet):
    if runs.State(run).now() != "running":
        sys.stderr.write(f"finitude: {printable(run)} does not run any more\n")
        return EXIT_CANNOT
    started = [_started(folder) for folder in _folders(run)]
    taken = set().union(*map(_taken, started))
    for key in settings:
        if key not in taken:
            needs = "--warnings off" if key in control.WARNINGS else "no --dump, with --dump-control or --redact"
            sys.stderr.write(f"finitude: {key} cannot be changed: this run was started with {needs}\n")
            return EXIT_CANNOT
    if any(key in control.DUMP for key in settings):
        settings = settings | {control.ASKED: str(time.time_ns())}
    for folder in _folders(run):
        if folder == run or os.path.isfile(os.path.join(folder, run_folder.STARTED)):
            now = control.read(folder) | settings
            control.write(folder, {key: value for key, value in now.items() if value})
    has_ranks = any(os.path.basename(folder).startswith("rank-") for folder in _folders(run))
    is_agreed = any(one.get("on_alarm") in SKIPS for one in started)
    if has_ranks and settings.get("on-alarm") in SKIPS and not is_agreed and not is_quiet:
        sys.stderr.write(_ALONE)
    return 0


def _started(folder):
    try:
        started = plain_json.read(os.path.join(folder, run_folder.STARTED))
    except (OSError, ValueError):
        return {}
    return started if isinstance(started, dict) else {}


def _taken(started):
    keys = started.get("ctl")
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
