"""What the policy has counted, kept in policy.json of the run folder. A run that `--resume` starts continues from what
the run before it has counted: bad steps in a row, in all and in the window, and the policy that held."""

from __future__ import annotations

import json
import os

from ..base import family, plain_json
from ..program import ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Config, PolicyMachine
    from ..report.document import Report

NAME = "policy.json"
MOST_OPTIMIZERS, MOST_STEPS, MOST, MOST_BYTES = 100, 10_000, 2**31 - 1, 16 << 20
_NUMBERS = ("optimizer", "in_a_row", "total", "stage")


def counts_anything(config: Config) -> bool:
    """Does a bad step change what is done about a later one?"""
    return config.on_alarm in ("skip", "rollback") or bool(config.max_bad or config.max_bad_share)


class PolicyState:
    def __init__(self, report: Report):
        self._report = report
        self._before = os.environ.get(family.RESUMED, "")  # folder of the run that this one continues

    def continue_from_before(self, policy: PolicyMachine) -> None:
        """Called at each alarm, before the policy is asked. Only the first call reads."""
        folder, self._before = self._before, ""
        if not folder:
            return
        path = _path_in(folder)
        try:
            if path:
                policy.continue_from(*read(path))
        except (OSError, ValueError) as e:
            self._report.complain(f"the policy counts from zero: {path}: {e}")

    def write(self, policy: PolicyMachine, ends: bool) -> None:
        """ends: the run ends at this bad step."""
        folder = self._report.run_directory()
        if folder is None:
            return
        counted = [dict(zip((*_NUMBERS, "steps_ago"), one)) for one in policy.counted(MOST_STEPS)]
        path = os.path.join(folder, NAME)
        with open(path + ".new", "w", encoding="ascii") as f:
            json.dump({"schema": 1, "ends": ends, "optimizers": counted[:MOST_OPTIMIZERS]}, f)
        os.replace(path + ".new", path)


def _path_in(folder: str) -> str:
    """Of the process that this one follows, or ""."""
    rank, size = ranks.world()
    if size > 1:
        names = [f"rank-{rank}"]
    else:
        members = (
            sorted(name for name in os.listdir(folder) if name.startswith("pid-")) if os.path.isdir(folder) else []
        )
        names = [".", *(members if len(members) == 1 else [])]
    found = [os.path.join(folder, name, NAME) for name in names]
    return next((path for path in found if os.path.exists(path)), "")


def read(path: str) -> tuple[list[tuple[int, int, int, int, list[int]]], int]:
    """(what was counted of each optimizer, good steps at least between the last bad step and the first one now). Raises
    OSError, ValueError: it is no such file."""
    document = plain_json.read(path, MOST_BYTES)
    found = document.get("optimizers") if isinstance(document, dict) else None
    if not isinstance(found, list) or len(found) > MOST_OPTIMIZERS:
        raise ValueError("it has no list of optimizers")
    assert isinstance(document, dict)
    return [_counted(one) for one in found], 0 if document.get("ends") is True else 1


def _counted(one: Any) -> tuple[int, int, int, int, list[int]]:
    numbers: list[Any] = [one.get(key) for key in _NUMBERS] if isinstance(one, dict) else []
    ago = one.get("steps_ago") if isinstance(one, dict) else None
    if not isinstance(ago, list) or len(ago) > MOST_STEPS or not all(map(_is_count, [*numbers, *ago])):
        raise ValueError("an optimizer has no counts")
    optimizer, in_a_row, total, stage = numbers
    return optimizer, in_a_row, total, stage, sorted(ago, reverse=True)


def _is_count(value):
    return type(value) is int and 0 <= value <= MOST
