"""What a check is, and which there are."""

from __future__ import annotations

import dataclasses
import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Function

LOOKS_AT = {
    "source": "the script and what it imports from its own folder, parsed and never run",
    "steps": "the first steps of the script, run in a process of their own",
    "run": "what a run left: its report, its ring of steps, a capsule",
    "log": "numbers by step that another tool logged",
}
VERDICTS = ("bad", "warn", "note")  # worst first


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a check found. verdict: "bad" is an error (exit code 1), "warn" most likely one, "note" worth knowing."""

    verdict: str
    text: str  # one sentence with the numbers that show it
    advice: str = ""
    file: str = ""
    line: int = 0
    evidence: dict = dataclasses.field(default_factory=dict)


def _finding(verdict):
    def make(text, advice="", at=None, **evidence):
        """at: (file, line) of the place in the user's code, or None."""
        file, line = at or ("", 0)
        return Finding(verdict, text, advice, file, line, evidence)

    make.__name__ = verdict
    return make


bad, warn, note = map(_finding, VERDICTS)


@dataclasses.dataclass(frozen=True)
class Check:
    id: str
    name: str
    looks_at: str
    function: Callable[..., Any]

    @property
    def text(self) -> str:
        """The first paragraph of the function's docstring: its row in the table of checks."""
        return " ".join((self.function.__doc__ or "").strip().split("\n\n")[0].split())


_checks = []


def check(id: str, name: str, looks_at: str) -> Callable[[Function], Function]:
    """Decorator: enters a generator function of findings as a check.

    id and name: as shown; several functions may share them, one for each of what they look at ("source": gets a
    source.Source, "steps": a facts.Steps, "run": a facts.Run, "log": a
    log_files.Log).
    """
    if looks_at not in LOOKS_AT:
        raise ValueError(f"a check looks at one of {', '.join(LOOKS_AT)}, not {looks_at!r}")

    def enter(function):
        _checks.append(Check(str(id), str(name), looks_at, function))
        return function

    return enter


def all_checks() -> list[Check]:
    """Every check, in the order of the table; those of --rules after ours."""
    from .checks import MODULES

    for name in MODULES:
        importlib.import_module(f"{__package__}.checks.{name}")
    ours = [c for c in _checks if c.function.__module__.startswith(__package__ + ".checks.")]
    return sorted(ours, key=lambda c: int(c.id[1:])) + [c for c in _checks if c not in ours]


def table() -> str:
    """The table of docs/doctor.md."""
    rows = ["| check | name | looks at | speaks of |", "|---|---|---|---|"]
    rows += [f"| {c.id} | `{c.name}` | {c.looks_at} | {c.text} |" for c in all_checks()]
    return "\n".join(rows) + "\n"
