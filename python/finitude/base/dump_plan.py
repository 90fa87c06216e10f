"""What --dump, --dump-steps and --dump-only ask for. Plain values; no torch."""

from __future__ import annotations

import dataclasses
import fnmatch
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

KINDS = ("statistics", "checksums", "tensors")
PHASES = ("forward", "backward", "optimizer", "data")
KEYS = ("module", "op", "phase", "rank", "micro-batch")
PATTERNS = ("module", "op")  # a value is a pattern; of the other keys a word or number


@dataclasses.dataclass(frozen=True)
class Steps:
    """Chosen numbers of steps: ranges, and every Nth."""

    ranges: tuple[tuple[int, int], ...]
    every: tuple[int, ...]

    def has(self, step: int) -> bool:
        return any(a <= step <= b for a, b in self.ranges) or any(step % n == 0 for n in self.every)

    def may_follow(self, step: int) -> bool:
        """Is any later step chosen?"""
        return bool(self.every) or any(b > step for _, b in self.ranges)


@dataclasses.dataclass(frozen=True)
class Plan:
    """kind "": nothing is dumped. only: for each key the values of which one has to fit."""

    kind: str = ""
    steps: Steps = Steps((), ())
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def takes_rank(self, rank: int) -> bool:
        return all(key != "rank" or str(rank) in values for key, values in self.only)

    def takes(self, record: Mapping[str, Any]) -> bool:
        """record: of an operator or a module's call, with "module", "op", "phase" and "micro_batch"."""
        return all(key == "rank" or _fits(key, values, record) for key, values in self.only)

    def unmatched(self, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Each "key=value" that fits none of the records."""
        return [
            f"{key}={value}"
            for key, values in self.only
            for value in values
            if key != "rank" and not any(_fits(key, (value,), record) for record in records)
        ]


def _fits(key, values, record):
    found = str(record.get(key.replace("-", "_"), ""))
    if key not in PATTERNS:
        return found in values
    # "encoder" is the module and all that is in it; aten::mm may be given as mm.
    names = (found, found.removeprefix("aten::")) if key == "op" else (found, found.partition(".")[2])
    return any(
        fnmatch.fnmatchcase(name, value) or (key == "module" and name.startswith(value + "."))
        for name in names
        for value in values
    )


def check_kind(kind: str) -> None:
    """Raises ValueError."""
    if kind not in ("", "off", *KINDS):
        raise ValueError(f"is one of {', '.join(KINDS)}, off, not {kind!r}")


def parse_steps(text: str, now: int = 0) -> Steps:
    """now: number of the step that comes next. Raises ValueError, with what is taken."""
    ranges, every = [], []
    for part in filter(None, text.replace(" ", "").split(",")):
        if match := re.fullmatch(r"every=([0-9]{1,9})", part):
            if int(match[1]) == 0:
                raise ValueError("every=0: N is 1 or more")
            every.append(int(match[1]))
        elif match := re.fullmatch(r"next(?:=([0-9]{1,9}))?", part):
            ranges.append((now, now + int(match[1] or 1) - 1))
        elif match := re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part):
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise ValueError(f"{part}: the last step is before the first")
            ranges.append((first, last))
        else:
            raise ValueError(f"{part!r} is neither a step (10), nor a range (10-20), nor every=N, nor next=N")
    if not ranges and not every:
        raise ValueError("no step is named: 10, 10-20 or every=100, with commas")
    return Steps(tuple(ranges), tuple(every))


def parse_only(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """ "module=encoder.*,op=mm,phase=backward": values of one key are alternatives, keys hold together. Raises
    ValueError."""
    only: dict[str, list[str]] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, sign, value = part.partition("=")
        if not sign or key not in KEYS or not value:
            raise ValueError(f"{part!r}: takes KEY=VALUE with the keys {', '.join(KEYS)}")
        if key == "phase" and value not in PHASES:
            raise ValueError(f"phase is one of {', '.join(PHASES)}, not {value!r}")
        if key in ("rank", "micro-batch") and not re.fullmatch("[0-9]{1,9}", value):
            raise ValueError(f"{key} takes a number, not {value!r}")
        only.setdefault(key, []).append(value)
    return tuple((key, tuple(values)) for key, values in only.items())


def parse(kind: str, steps: str, only: str, now: int = 0) -> Plan:
    """now: number of the step that comes next. Raises ValueError."""
    check_kind(kind)
    return Plan(kind if kind in KINDS else "", parse_steps(steps, now), parse_only(only))
