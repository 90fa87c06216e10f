"""What --dump, --dump-steps and --dump-only ask for. Plain values; no torch."""

from __future__ import annotations

import dataclasses
import fnmatch
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

KINDS = ("statistics", "checksums", "tensors")
# What may be added to a kind: "tensors+operators+stacks".
OPERATORS, OPERATORS_ONLY, STACKS = "operators", "operators-only", "stacks"
PHASES = ("forward", "backward", "optimizer", "data")
SIDES = ("inputs", "outputs")
KEYS = ("module", "scope", "op", "phase", "side", "rank", "micro-batch", "rows")
PATTERNS = ("module", "op")  # a value is a pattern; of the other keys a word or number
NOT_OF_RECORDS = ("scope", "side", "rank", "rows")  # which of the records they choose depends on more than the record


@dataclasses.dataclass(frozen=True)
class Steps:
    """Chosen numbers of steps: ranges, and every Nth."""

    ranges: tuple[tuple[int, int], ...]
    every: tuple[int, ...]

    def has(self, step: int) -> bool:
        return any(a <= step <= b for a, b in self.ranges) or any(step % n == 0 for n in self.every)

    def after(self, step: int) -> str:
        """Those parts that begin later, as text. step: -1 before the first."""
        parts = [str(a) if a == b else f"{a}-{b}" for a, b in self.ranges if a > step]
        return ",".join(parts + [f"every={n}" for n in self.every if step < 0])

    def how_many_after(self, step: int) -> int | None:
        """None: there is no end of them."""
        if self.every:
            return None
        count = 0
        for first, last in sorted(self.ranges):
            count += max(0, last - max(first - 1, step))
            step = max(step, last)
        return count


@dataclasses.dataclass(frozen=True)
class Plan:
    """kind "": nothing is dumped. only: for each key the values of which one has to fit. with_operators: what operators
    do is dumped, with_modules: what modules do. with_stacks: each record names all frames."""

    kind: str = ""
    steps: Steps = Steps((), ())
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()
    with_operators: bool = False
    with_modules: bool = True
    with_stacks: bool = False

    def scope(self) -> tuple[str, str] | None:
        """The modules with which it begins and ends, in the order of their calls."""
        first, is_there, last = self._value("scope").partition("..")
        return (first, last) if is_there else None

    def rows(self) -> tuple[int, int] | None:
        """Of the first dimension: from the one up to before the other."""
        first, is_there, end = self._value("rows").partition(":")
        return (int(first), int(end)) if is_there else None

    def has_side(self, side: str) -> bool:
        """side: one of SIDES."""
        return side in (self._values("side") or SIDES)

    def modules(self) -> list[str]:
        """The patterns of modules, also those of the scope."""
        return [*self._values("module"), *(self.scope() or ())]

    def values(self, key: str) -> list[str]:
        """Of which one has to fit; none: any does."""
        return list(self._values(key))

    def only_text(self) -> str:
        return ",".join(f"{key}={value}" for key, values in self.only for value in values)

    def _values(self, key: str) -> tuple[str, ...]:
        return next((values for k, values in self.only if k == key), ())

    def _value(self, key: str) -> str:
        """Of a key that has one value; "" without one."""
        return next(iter(self._values(key)), "")

    def takes_rank(self, rank: int) -> bool:
        return all(key != "rank" or rank in map(int, values) for key, values in self.only)

    def missing_ranks(self, size: int) -> str:
        """Which ranks a run of so many does not have, as text; "" where it has them all."""
        if not (beyond := [f"rank={value}" for value in self._values("rank") if int(value) >= size]):
            return ""
        there = "one rank, 0" if size == 1 else f"the ranks 0 to {size - 1}"
        return f"--dump-only {','.join(beyond)}: this run has {there}"

    def takes(self, record: Mapping[str, Any]) -> bool:
        """record: of an operator or a module's call, with "module", "op", "phase" and "micro_batch"."""
        return all(key in NOT_OF_RECORDS or fits(key, values, record) for key, values in self.only)

    def unmatched(self, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Each "key=value" that fits none of the records."""
        wanted = [(key, value) for key, values in self.only for value in values if key not in NOT_OF_RECORDS]
        wanted += [("module", end) for end in self.scope() or ()]
        return [f"{key}={value}" for key, value in wanted if not any(fits(key, (value,), r) for r in records)]


class Scope:
    """From the call of one module to the return of another, in the order in which a step calls them; again where the
    first is called again. Without ends all is inside."""

    def __init__(self, ends: tuple[str, str] | None):
        self._ends, self._is_inside = ends, ends is None
        self._modules: set[str] = set()  # that were called inside, as a record names them

    def begins(self, module: str) -> bool:
        """A call of it begins: is it inside?"""
        if self._ends is not None and _is_module(self._ends[0], module):
            self._is_inside = True
        if self._is_inside:
            self._modules.add(module)
        return self._is_inside

    def ends(self, module: str) -> None:
        """A call of it has returned."""
        if self._ends is not None and _is_module(self._ends[1], module):
            self._is_inside = False

    def has_below_root(self, module: str) -> bool:
        """Was that module called inside? module: its name in the model, "" for the model itself."""
        return self._ends is None or any(m.partition(".")[2] == module for m in self._modules)

    def of_operators(self, records: Iterable[Mapping[str, Any]]) -> list[bool]:
        """Of each operator of a step, in order: is it inside? Those of backward belong to the module they derive."""
        # A module that contains others has few operators of its own: what is called inside of it counts as it.
        was_first = was_last = is_inside = False
        inside: list[bool] = []
        for record in records:
            module = str(record.get("module", ""))
            if self._ends is None:
                inside.append(True)
            elif record.get("phase") != "forward":
                inside.append(module in self._modules)
            elif module:
                is_first, is_last = (fits("module", (end,), record) for end in self._ends)
                is_inside = is_inside and (is_last or not was_last) or is_first and not was_first
                was_first, was_last = is_first, is_last
                if is_inside:
                    self._modules.add(module)
                inside.append(is_inside)
            else:
                inside.append(False)
        return inside


def _is_module(pattern, module):
    """Is it that module itself, not one inside of it?"""
    return any(fnmatch.fnmatchcase(name, pattern) for name in (module, module.partition(".")[2]))


def fits(key: str, values: Sequence[str], record: Mapping[str, Any]) -> bool:
    """Does the record have one of these values of that key?"""
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
    base, *more = kind.split("+")
    if base not in ("", "off", *KINDS) or more and base not in KINDS:
        raise ValueError(f"is one of {', '.join(KINDS)}, off, not {kind!r}")
    for word in more:
        if word not in (OPERATORS, OPERATORS_ONLY, STACKS):
            raise ValueError(f"{base}+{word}: +{OPERATORS_ONLY}, +{OPERATORS} or +{STACKS} can be added")
    if {OPERATORS, OPERATORS_ONLY} & set(more) and base == "statistics":
        raise ValueError("statistics are of operators already; +operators is for checksums and tensors")


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
        if key == "side" and value not in SIDES:
            raise ValueError(f"side is one of {', '.join(SIDES)}, not {value!r}")
        if key == "scope" and not re.fullmatch(r".+\.\..+", value):
            raise ValueError(f"scope takes FIRST..LAST, two modules in the order of their calls, not {value!r}")
        if key == "rows" and not _is_range(value):
            raise ValueError(f"rows takes FIRST:END, as rows=0:4 for the first four, not {value!r}")
        if key in ("rank", "micro-batch") and not re.fullmatch("[0-9]{1,9}", value):
            raise ValueError(f"{key} takes a number, not {value!r}")
        if key in ("scope", "rows") and key in only:
            raise ValueError(f"{key} is given twice")
        only.setdefault(key, []).append(value)
    return tuple((key, tuple(values)) for key, values in only.items())


def _is_range(text):
    found = re.fullmatch("([0-9]{1,9}):([0-9]{1,9})", text)
    return found is not None and int(found[1]) < int(found[2])


def parse(kind: str, steps: str, only: str, now: int = 0) -> Plan:
    """now: number of the step that comes next. Raises ValueError."""
    check_kind(kind)
    base, *more = kind.split("+")
    kind, has_modules = base if base in KINDS else "", base != "statistics" and OPERATORS_ONLY not in more
    has_operators = not has_modules or OPERATORS in more
    return Plan(kind, parse_steps(steps, now), parse_only(only), has_operators, has_modules, STACKS in more)
