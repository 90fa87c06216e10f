"""What other tools logged of a training: trainer_state.json of Hugging Face, what its Trainer prints, metrics.csv of
Lightning, TensorBoard's event files, lines of JSON. Only numbers by step are taken. The files are anyone's: bounded,
never evaluated."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re

from ..base import plain_file
from . import tfevents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

MOST_BYTES = 512 << 20  # of one file
MOST_LINE = 1 << 20
MOST_POINTS = 1_000_000  # of one file
MOST_SERIES = 512
MOST_NAME = 200
MOST_FILES = 64
MOST_ENTRIES = 4096  # of a directory
MOST_NESTED = 3  # levels of names in a record
MOST_TRIED = 8  # beginnings of dictionaries in a printed line
_NAMED_ONLY = "", "printed", "records"  # kinds of files that a directory may hold for other reasons
_INNER_NOT = *_NAMED_ONLY, "trainer_state"
_PRINTED = (".log", ".txt", ".out", ".err")  # names of files that hold what a program printed
_STEPS = ("step", "global_step", "trainer/global_step", "_step", "iteration", "iter", "steps", "num_updates")
_JSON_WORDS = {"nan": "NaN", "inf": "Infinity", "None": "null", "True": "true", "False": "false"}
_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
_ROLES = (
    ("lr", re.compile(r"(^|[/_. ])(lr|learning_rate|learning rate)($|[-/_. ])", re.IGNORECASE)),
    ("scale", re.compile(r"(loss|grad|amp)[-_ ]?scale|scaler", re.IGNORECASE)),
    ("gradient", re.compile(r"grad(ient)?s?[-_ /]?(2\.0_)?norm|gnorm", re.IGNORECASE)),
    ("loss", re.compile(r"loss|perplexity|(^|[/_. ])nll", re.IGNORECASE)),
)
_HELD_OUT = re.compile(r"(^|[/_. -])(eval|val|valid|validation|test|dev)($|[/_. -])", re.IGNORECASE)
_EVENTS = re.compile(r"(^|\.)tfevents\.")


class Unreadable(Exception):
    """Says what cannot be read, and why."""


class Series:
    """One quantity: steps and values in the order in which they were logged."""

    def __init__(self, name: str):
        self.name = name
        self.role = next((role for role, form in _ROLES if form.search(name)), "")
        self.is_held_out = bool(_HELD_OUT.search(name))
        self.steps: list[int] = []
        self.values: list[float] = []
        self.nulls = self.longest_nulls = 0  # records in a row that hold null for it: at the end, and before
        self.null_since = 0  # the first step of those at the end

    def at(self, step: int) -> float | None:
        """The value that was last logged up to that step; None: there is none."""
        found = None
        for s, value in zip(self.steps, self.values):
            if s > step:
                break
            found = value
        return found


class Log:
    """What the checks are given."""

    def __init__(self, path: str, kind: str):
        self.path, self.kind = path, kind
        self.series: dict[str, Series] = {}
        self.points = 0
        self.trouble = ""  # why its end was not read

    def add(self, step: int, name: str, value: float) -> None:
        name = name[:MOST_NAME]
        if name not in self.series:
            if len(self.series) >= MOST_SERIES:
                self.trouble = self.trouble or f"more than {MOST_SERIES} quantities"
                return
            self.series[name] = Series(name)
        if self.points >= MOST_POINTS:
            raise _Enough
        self.points += 1
        series = self.series[name]
        series.longest_nulls, series.nulls = max(series.longest_nulls, series.nulls), 0
        series.steps.append(step)
        series.values.append(value)

    def add_null(self, step: int, name: str) -> None:
        """The record names it, without a number: what had none before has never been a quantity."""
        if (series := self.series.get(name[:MOST_NAME])) is not None:
            series.null_since = series.null_since if series.nulls else step
            series.nulls += 1

    def of(self, role: str, held_out: bool = False) -> list[Series]:
        return [s for s in self.series.values() if s.role == role and s.is_held_out == held_out]

    def rate(self, step: int) -> float | None:
        """The learning rate that was last logged up to that step."""
        return next((value for s in self.of("lr") if (value := s.at(step)) is not None), None)


class _Enough(Exception):
    pass


def _number(value):
    """A float, or None. Texts that are numbers or NaN are such in CSV and in many a JSON."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and 0 < len(value) <= 64:
        word = value.strip().lower().lstrip("+")
        if word in _WORDS:
            return _WORDS[word]
        try:
            return float(word)
        except ValueError:
            return None
    return None


def _step(record, before):
    for name in _STEPS:
        value = _number(record.get(name))
        if value is not None and math.isfinite(value) and abs(value) < 1 << 53:
            return int(value)
    return before + 1


def _enter(log, record, before):
    """One record of several quantities. Returns its step."""
    step = _step(record, before)
    leaves = _leaves("", {key: value for key, value in record.items() if key not in _STEPS}, MOST_NESTED)
    for name, value in itertools.islice(leaves, MOST_SERIES):
        if value is None:
            log.add_null(step, name)
        elif (number := _number(value)) is not None:
            log.add(step, name, number)
    return step


def _leaves(prefix, values, depth):
    """(name, value) of what is no dictionary."""
    for key, value in values.items():
        if not isinstance(key, str):
            continue
        if not isinstance(value, dict):
            yield prefix + key, value
        elif depth > 1:
            yield from _leaves(f"{prefix}{key}.", value, depth - 1)


def _lines(file: BinaryIO) -> Iterator[str]:
    size = 0
    while line := file.readline(MOST_LINE + 1):
        size += len(line)
        if len(line) > MOST_LINE or size > MOST_BYTES:
            raise ValueError(f"a line of more than {MOST_LINE} bytes, or more than {MOST_BYTES} in all")
        yield line.decode("utf-8", "replace")


def _json_lines(log, file):
    step, good, bad = -1, 0, 0
    for line in _lines(file):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            bad += 1
            if not good and bad > 20:
                break
            continue
        good += 1
        step = _enter(log, record, step)
    if not good:
        raise Unreadable(f"{log.path} holds no line that is a JSON object")
    if bad:
        log.trouble = f"{bad} line{'s' * (bad != 1)} of it {'are' if bad != 1 else 'is'} no JSON object"


def _printed(log, file):
    """Lines with a dictionary in them, as the Trainer of Hugging Face prints: {'loss': 2.5, 'epoch': 0.1}."""
    step, good = -1, 0
    for line in _lines(file):
        for record in _dictionaries(line):
            if any(_number(value) is not None for value in record.values()):
                good += 1
                step = _enter(log, record, step)
    if not good:
        raise Unreadable(f"{log.path} holds no line with numbers by name, as {{'loss': 2.5, 'epoch': 0.1}}")


def _dictionaries(line):
    """Those that are printed in a line, as Python or JSON writes them; MOST_TRIED beginnings are looked at."""
    if "{" not in line:
        return
    text = re.sub(r"'[^'\"\\]*'", lambda quoted: f'"{quoted[0][1:-1]}"', line)
    text = re.sub(r"(?<=[ :,])(-?)(nan|inf|None|True|False)(?=[ ,}])", lambda m: m[1] + _JSON_WORDS[m[2]], text)
    decoder, at = json.JSONDecoder(), text.find("{")
    for _ in range(MOST_TRIED):
        if at < 0:
            return
        try:
            record, end = decoder.raw_decode(text, at)
            yield record
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find("{", end)


def _trainer_state(log, file):
    data = plain_file.first(file, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unreadable(f"{log.path} is larger than {MOST_BYTES} bytes")
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Unreadable(f"{log.path} is no JSON") from None
    history = document.get("log_history") if isinstance(document, dict) else document
    if not isinstance(history, list):
        raise Unreadable(f"{log.path} has no log_history")
    step = -1
    for record in history:
        if isinstance(record, dict):
            step = _enter(log, record, step)


def _csv(log, file):
    lines = _lines(file)
    head = next(lines, "").lstrip("\ufeff")
    separator = max(",;\t", key=head.count)  # of several the first
    rows = csv.reader(itertools.chain([head], lines), delimiter=separator)
    names = next(rows, [])
    if len(names) > MOST_SERIES or not any(name.strip() for name in names):
        raise Unreadable(f"{log.path} has no header, or one of more than {MOST_SERIES} columns")
    if all(_number(name) is not None for name in names):
        raise Unreadable(f"{log.path} has no header: its first row holds numbers")
    step, numbers = -1, 0
    for row in rows:
        record = dict(zip(names, row))
        numbers += any(_number(v) is not None for v in record.values())
        step = _enter(log, record, step)
    if not numbers:
        raise Unreadable(f"{log.path} holds no row with a number")


def _events(log, file):
    found = 0
    try:
        for record in tfevents.records(file):
            found += 1
            try:
                for step, tag, value in tfevents.scalars(record):
                    log.add(step if step < 1 << 53 else 0, tag, value)
            except ValueError:
                log.trouble = "a record of it is no event"
    except tfevents.Damaged as e:
        if not found:
            raise Unreadable(f"{log.path} is no event file: {e}") from None
        log.trouble = f"{e}; what follows was not read"


_READERS = {
    "jsonl": _json_lines,
    "trainer_state": _trainer_state,
    "csv": _csv,
    "events": _events,
    "printed": _printed,
    "records": _trainer_state,
}


def kind_of(path: str) -> str:
    """Which log a file is, by its name and, of a JSON file, its beginning; "": none."""
    name = os.path.basename(path)
    if _EVENTS.search(name):
        return "events"
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if name.endswith((".csv", ".tsv")):
        return "csv"
    if name.endswith(_PRINTED):
        return "printed"
    if name == "trainer_state.json":
        return "trainer_state"
    if name.endswith(".json"):
        head = plain_file.head(path, 1 << 16)
        if b'"log_history"' in head:
            return "trainer_state"
        return "records" if re.match(rb"\s*\[\s*\{", head) else ""
    return ""


def _entries(folder):
    try:
        with os.scandir(folder) as found:
            return sorted((e for _, e in zip(range(MOST_ENTRIES), found)), key=lambda e: e.name)
    except OSError:
        return []


def _newest_state(folders):
    """Of checkpoints of one training the last one's history holds that of the others."""

    def number(path):
        digits = re.findall(r"\d{1,12}", os.path.basename(path))
        return int(digits[-1]) if digits else -1

    states = [s for f in folders if os.path.isfile(s := os.path.join(f, "trainer_state.json"))]
    return [max(states, key=lambda s: number(os.path.dirname(s)))] if states else []


def below(folder: str) -> list[str]:
    """The logs in a directory, or, where it has none, in those in it (version_0, checkpoint-500)."""
    entries = _entries(folder)
    found = [e.path for e in entries if e.is_file() and kind_of(e.path) not in _NAMED_ONLY]
    if found:
        return found[:MOST_FILES]
    inner = [e.path for e in entries if e.is_dir(follow_symlinks=False)]
    found = _newest_state(inner)
    for path in inner:
        found += [e.path for e in _entries(path) if e.is_file() and kind_of(e.path) not in _INNER_NOT]
    return found[:MOST_FILES]


def read(path: str) -> Log:
    """The numbers of a log. Raises Unreadable."""
    kind = kind_of(path)
    log = Log(path, kind)
    try:
        with plain_file.opened(path) as file:
            _READERS[kind](log, file)
    except _Enough:
        log.trouble = f"more than {MOST_POINTS} numbers; what follows was not read"
    except (OSError, ValueError, csv.Error) as e:
        if not log.points:
            raise Unreadable(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
        log.trouble = f"{getattr(e, 'strerror', None) or e}; what follows was not read"
    if not log.points:
        raise Unreadable(f"{path} holds no numbers by step")
    return log


def about(log: Log) -> dict[str, Any]:
    """What of it was read, for the JSON of the doctor."""
    return {"file": log.path, "kind": log.kind, "numbers": log.points, "quantities": sorted(log.series)[:64]}
