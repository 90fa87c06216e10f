"""Asks the program finitude-offline, which checks what it reads: reports as JSON, and their short form."""

from __future__ import annotations

import json
import os
import subprocess

from ..base import programs
from . import brief, roots, text
from .text import EXIT_CANNOT, EXIT_INPUT, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_JSON = 256 << 20  # bytes of a report as JSON; a file beyond it is refused before
SECONDS = 120
EXIT_USAGE = 2
_WITH_A_REPORT = ("report.json", "capsule.json")  # folders


def asked(*words: str) -> str:
    """What finitude-offline prints. Raises Refused with what it says where it fails."""
    program = programs.path_of(programs.OFFLINE)
    try:
        done = subprocess.run(
            ["finitude", *words], executable=program, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS
        )
    except OSError as e:
        raise Refused(f"cannot start {program}: {e.strerror}", EXIT_CANNOT) from None
    except subprocess.TimeoutExpired:
        raise Refused(f"it was not read within {SECONDS} s", EXIT_CANNOT) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise Refused(text.line(said[0].removeprefix("finitude: ")), max(done.returncode, EXIT_INPUT))
    if len(done.stdout) > MOST_JSON:
        raise Refused(f"it is larger than {MOST_JSON} bytes")
    return done.stdout.decode("utf-8", "replace")


def report(path: str, called: str) -> dict[str, Any] | str:
    """The checked report of a file, run or capsule, also a packed one, which is called so in it; of a run that has none
    yet what else it left, as text. Raises Refused."""
    if os.path.isdir(path) and not any(os.path.lexists(os.path.join(path, one)) for one in _WITH_A_REPORT):
        return asked("report", path, f"--called={called}")
    try:
        document = json.loads(asked("report", "--json", path, f"--called={called}"))
    except (ValueError, RecursionError):
        raise Refused("is no report") from None
    if not isinstance(document, dict):
        raise Refused("is no report")
    return document


def for_agent(path: str, called: str, as_json: bool = False) -> str:
    """The report in at most 16 KB. Raises Refused."""
    document = report(path, called)
    if isinstance(document, dict):
        return brief.brief(document, called, as_json)
    shown = text.within(document, text.MOST // 2)
    return (
        json.dumps({"schema": 1, "finitude": {"report of": called}, "text": shown}, indent=1) + "\n"
        if as_json
        else shown
    )


USAGE = f"""usage: finitude report --for-agent [RUN|CAPSULE|FILE] [--json]
The report in at most 16 KB of plain text, the most important first, and what was cut. Without a path: of the newest run
below {roots.RUNS} (FINITUDE_RUNS). docs/agents.md says more.
"""


def command(words: list[str]) -> tuple[int, str, str]:
    """`report --for-agent`: (exit code, standard output, standard error)."""
    as_json, paths = False, []
    for word in words:
        if word in ("-h", "--help"):
            return 0, USAGE, ""
        if word == "--json":
            as_json = True
        elif word in ("--for-agent", "--no-colour", "--no-color", "-q", "--quiet"):
            pass  # it has no colours
        elif word.startswith("-"):
            return EXIT_USAGE, "", f"finitude: report --for-agent has no option {text.line(word)}\n{USAGE}"
        else:
            paths.append(word)
    if len(paths) > 1:
        return EXIT_USAGE, "", f"finitude: report --for-agent takes one path\n{USAGE}"
    runs = os.environ.get("FINITUDE_RUNS") or roots.RUNS
    path = paths[0] if paths else max(roots.runs_of(runs), key=os.path.basename, default=None)
    if path is None:
        return EXIT_INPUT, "", f"finitude: there is no run in {text.line(runs)}\n"
    try:
        return 0, for_agent(path, path, as_json), ""
    except Refused as e:
        said = str(e)
        return e.code, "", f"finitude: {said if path in said else f'{text.line(path)} {said}'}\n"
