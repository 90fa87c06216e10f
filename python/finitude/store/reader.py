"""Reads a store.sqlite, schema 1. The file is anyone's and may be written meanwhile: it is opened read-only, every
query has a limit of rows and of time, and every value is checked."""

from __future__ import annotations

import math
import os
import sqlite3
import stat
import time
import urllib.parse

from ..base import plain_file
from ..base.say import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

NAME = "store.sqlite"
VERSION = 1
MOST_BYTES = 4 << 30  # of the file
MOST_SERIES = 50_000
MOST_POINTS = 4096  # of a series; the writer keeps half of that
MOST_KEYS = 100  # of info
MOST_TEXT = 1000  # characters of a name
MOST_STEP = 2**53
SECONDS = 20.0  # for one query
MOST_DATASETS = 1000
MOST_BATCHES = 500_000  # the writer keeps 100,000, and those of events
MOST_IDS = 4096  # of a batch
_LIMIT_LENGTH = 0  # SQLITE_LIMIT_LENGTH
_MAGIC = b"SQLite format 3\0"
_TABLES = ("info", "series", "point")
_OF_ROWS = ("dataset", "batch")


class Unreadable(ValueError):
    """It is no store, damaged, of another version, or too large."""


class Series:
    """What one series is of: a quantity of an optimizer, or of one of its parameters."""

    __slots__ = ("id", "quantity", "optimizer", "parameter")

    def __init__(self, id: int, quantity: str, optimizer: str, parameter: str | None):
        self.id, self.quantity, self.optimizer, self.parameter = id, quantity, optimizer, parameter

    def name(self) -> str:
        """gradient_absmax/AdamW/layers.0.weight"""
        return "/".join(filter(None, (self.quantity, self.optimizer, self.parameter)))


class Point:
    """The finite values of steps `step` to `last_step`; None where there was none. time: Unix seconds of last_step."""

    __slots__ = ("step", "last_step", "time", "first", "last", "min", "max")

    def __init__(self, row: Sequence[Any]):
        """Raises Unreadable."""
        self.step, self.last_step = _step(row[0]), _step(row[1])
        self.time, self.first, self.last, self.min, self.max = map(_real, row[2:7])
        if self.last_step < self.step:
            raise Unreadable("a point ends before it begins")


class Batch:
    """A micro-batch of a step. ids: the first of its rows in the data set; count: of all of them."""

    __slots__ = ("optimizer", "step", "micro_batch", "dataset", "epoch", "worker", "applied", "event", "count", "ids")

    def __init__(self, row: Sequence[Any]):
        """Raises Unreadable."""
        self.optimizer, self.event = _text(row[0]) or "", _text(row[7])
        self.step, self.micro_batch, self.dataset, self.epoch = map(_step, row[1:5])
        self.worker = None if row[5] is None else _step(row[5])
        self.applied, self.count = bool(_step(row[6])), _step(row[8])
        self.ids = _ids(row[9])


def _ids(data):
    """Of varints: the differences of neighbours, zigzag."""
    if not isinstance(data, bytes):
        raise Unreadable("the rows of a batch are no bytes")
    found, value, shift, last = [], 0, 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift > 63:
                raise Unreadable("the rows of a batch are damaged")
            continue
        last += (value >> 1) ^ -(value & 1)
        found.append(last)
        value = shift = 0
        if len(found) > MOST_IDS:
            raise Unreadable("a batch has more rows than are kept")
    return found


def _step(value):
    if type(value) is not int or not 0 <= value < MOST_STEP:
        raise Unreadable("a step is no whole number")
    return value


def _real(value):
    """None where it is no finite number."""
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _text(value):
    """Printable, and not long."""
    if not isinstance(value, str):
        return None
    return printable(value[:MOST_TEXT])


def _check_file(path):
    with plain_file.opened(path) as f:
        if f.read(len(_MAGIC)) != _MAGIC:
            raise Unreadable("it is no SQLite file")
        if os.fstat(f.fileno()).st_size > MOST_BYTES:
            raise Unreadable(f"it is larger than {MOST_BYTES >> 30} GB")
    has_log = False
    for suffix in ("-wal", "-shm", "-journal"):  # SQLite opens them, and would follow a link
        try:
            found = os.lstat(path + suffix)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(f"its {suffix[1:]} is no plain file")
        has_log |= suffix == "-wal"
    return has_log


class Store:
    """An open store. A context manager; of one thread."""

    def __init__(self, path: str):
        """Raises Unreadable; OSError where the file cannot be opened."""
        path = os.path.abspath(path)
        # Without a log nobody writes, and SQLite need not make files beside it.
        mode = "mode=ro" if _check_file(path) else "mode=ro&immutable=1"
        self._until = 0.0
        try:
            self._connection = sqlite3.connect(
                f"file:{urllib.parse.quote(os.fsencode(path))}?{mode}", uri=True, timeout=2.0, isolation_level=None
            )
        except sqlite3.Error as e:
            raise Unreadable(str(e)) from None
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self):
        self._connection.set_progress_handler(lambda: time.monotonic() > self._until, 10_000)
        self._connection.text_factory = lambda data: data.decode("utf-8", "replace")
        if hasattr(self._connection, "setlimit"):  # from Python 3.11 on
            self._connection.setlimit(_LIMIT_LENGTH, 8 << 20)
        for setting in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
            list(self._rows(f"PRAGMA {setting}", (), 10))
        version = [row[0] for row in self._rows("PRAGMA user_version", (), 1)]
        if version != [VERSION]:
            raise Unreadable(f"it is of version {version[0] if version else '?'}, not {VERSION}")
        # A view or a virtual table of that name would run what somebody else wrote.
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name IN (?, ?, ?)"
        found = {name: str(sql) for name, sql in self._rows(query, _TABLES, 3)}
        if set(found) != set(_TABLES) or any(sql[:12].upper() != "CREATE TABLE" for sql in found.values()):
            raise Unreadable("its tables are not those of a store")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def _rows(self, query: str, values: Sequence[Any], most: int) -> Iterator[tuple[Any, ...]]:
        """At most so many. Raises Unreadable."""
        self._until = time.monotonic() + SECONDS
        try:
            for count, row in enumerate(self._connection.execute(query, values)):
                if count == most:
                    return
                yield row
        except (sqlite3.Error, OverflowError, UnicodeError) as e:
            raise Unreadable(str(e)) from None

    def info(self) -> dict[str, str]:
        """What the process is: rank, world, pid, host, started, version, torch."""
        rows = self._rows("SELECT key, value FROM info", (), MOST_KEYS)
        return {key: value for key, value in ((_text(k), _text(v)) for k, v in rows) if key and value is not None}

    def series(self) -> list[Series]:
        """Those of whole optimizers first, in the order in which they began."""
        query = "SELECT id, quantity, optimizer, parameter FROM series ORDER BY parameter IS NOT NULL, id"
        found = []
        for number, quantity, optimizer, parameter in self._rows(query, (), MOST_SERIES):
            name = _text(quantity)
            if type(number) is int and name:
                found.append(Series(number, name, _text(optimizer) or "", _text(parameter)))
        return found

    def dtypes(self, optimizer: str) -> dict[str, str]:
        """{parameter: dtype} of an optimizer, as torch names it; without those that the store does not know."""
        if "dtype" not in [row[1] for row in self._rows("PRAGMA table_info(series)", (), 64)]:
            return {}  # of an earlier build
        query = "SELECT parameter, dtype FROM series WHERE optimizer = ? AND parameter IS NOT NULL"
        rows = self._rows(query, (optimizer,), MOST_SERIES)
        return {name: dtype for name, dtype in ((_text(n), _text(d)) for n, d in rows) if name and dtype}

    def points(self, series: int, from_step: int = 0) -> list[Point]:
        """Those whose last step is from_step or later, in order."""
        query = (
            'SELECT step, last_step, time, first, last, "min", "max" FROM point WHERE series = ? AND last_step >= ? '
            "ORDER BY step"
        )
        return [Point(row) for row in self._rows(query, (series, from_step), MOST_POINTS)]

    def range(self, series: Sequence[int]) -> dict[int, tuple[int, int, int]]:
        """{series: (steps in its first point, last step of all, points)} of those that have points. The first number
        grows whenever a series becomes coarser."""
        found = {}
        for one in series:
            query = "SELECT last_step - step + 1 FROM point WHERE series = ? ORDER BY step LIMIT 1"
            first = [_step(row[0]) for row in self._rows(query, (one,), 1)]
            query = "SELECT max(last_step), count(*) FROM (SELECT last_step FROM point WHERE series = ? LIMIT ?)"
            last = list(self._rows(query, (one, MOST_POINTS), 1))
            if first and last and last[0][0] is not None:
                found[one] = (first[0], _step(last[0][0]), _step(last[0][1]))
        return found

    def has_batches(self) -> bool:
        """Not in a store of an older version."""
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name IN (?, ?)"
        found = {name: str(sql) for name, sql in self._rows(query, _OF_ROWS, 2)}
        return set(found) == set(_OF_ROWS) and all(sql[:12].upper() == "CREATE TABLE" for sql in found.values())

    def datasets(self) -> dict[int, tuple[str, int | None]]:
        """{number: (class, length or None)}. Where has_batches()."""
        rows = self._rows("SELECT id, class, length FROM dataset", (), MOST_DATASETS)
        return {
            number: (_text(name) or "?", length if type(length) is int and 0 <= length < MOST_STEP else None)
            for number, name, length in rows
            if type(number) is int
        }

    def first_and_last_batch(self) -> tuple[int | None, int | None]:
        """Steps. Where has_batches()."""
        ends = next(self._rows("SELECT min(step), max(step) FROM batch", (), 1), (None, None))
        return (None, None) if ends[0] is None else (_step(ends[0]), _step(ends[1]))

    def batches(self, where: str = "", values: Sequence[Any] = ()) -> Iterator[Batch]:
        """In the order of steps. where: a fixed condition on the columns. Where has_batches()."""
        query = (
            "SELECT optimizer, step, micro_batch, dataset, epoch, worker, applied, event, count, ids FROM batch "
            f"{where and 'WHERE ' + where} ORDER BY step, optimizer, micro_batch"
        )
        for row in self._rows(query, values, MOST_BATCHES):
            yield Batch(row)

    def largest(self, quantity: str, optimizer: str, columns: int) -> Largest:
        """The largest value of each parameter in each of so many equal parts of the run."""
        about = [s for s in self.series() if s.parameter and (s.quantity, s.optimizer) == (quantity, optimizer)]
        row_of = {s.id: row for row, s in enumerate(about)}
        names = [s.parameter or "" for s in about]
        join = "FROM point JOIN series ON series.id = point.series WHERE quantity = ? AND parameter IS NOT NULL"
        ends = list(self._rows(f"SELECT min(step), max(last_step) {join}", (quantity,), 1))
        if not about or not ends or ends[0][0] is None:
            return Largest(names, 0, 0, columns)
        first, last = map(_step, ends[0])
        found = Largest(names, first, last, columns)
        query = f'SELECT point.series, (step - ?) * ? / ? AS part, max("max"), max(last_step) {join} GROUP BY 1, 2'
        values = (first, columns, found.steps(), quantity)
        for one, part, value, end in self._rows(query, values, MOST_SERIES * columns):
            real = _real(value)
            if one in row_of and real is not None and type(part) is int and type(end) is int:
                found.put(row_of[one], part, found.part_of(end), real)
        return found


class Largest:
    """values[row][part] of the parameters `names`; None where there is no point. Parts are of equal length, from step
    `first` to step `last`."""

    def __init__(self, names: list[str], first: int, last: int, columns: int):
        self.names, self.first, self.last, self.columns = names, first, last, columns
        self.values: list[list[float | None]] = [[None] * columns for _ in names]

    def steps(self) -> int:
        return self.last - self.first + 1

    def part_of(self, step: int) -> int:
        return (step - self.first) * self.columns // self.steps()

    def put(self, row: int, part: int, end: int, value: float) -> None:
        """A point may be longer than a part: its value is then in several."""
        own = self.values[row]
        for at in range(max(0, part), min(max(part, end) + 1, self.columns)):
            before = own[at]
            if before is None or value > before:
                own[at] = value
