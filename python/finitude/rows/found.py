"""What the stores of a run have of rows: batches of single steps, rows that bad steps share."""

from __future__ import annotations

import os

from ..base import skip_list
from ..store import events, reader, runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..store.reader import Batch

BAD = ("alarm", "spike")
MOST_STEPS = 1000  # bad ones that are looked at, the newest
MOST_COMMON = 100  # rows that are listed

Dataset = tuple[str, "int | None"]  # class, length
Row = tuple[Dataset, int]


class NoRows(Exception):
    """The run has none, and why."""


class Process:
    """One of a run. Its rows are those of its rank."""

    def __init__(self, folder: str, rank: int):
        """Raises reader.Unreadable, OSError."""
        self.folder, self.rank, self.path = folder, rank, os.path.join(folder, reader.NAME)
        with reader.Store(self.path) as store:
            text = store.info().get("rank", "")
            self.is_old, self.is_redacted = not store.has_batches(), store.info().get("rows") == "off"
            self.datasets: dict[int, Dataset] = {} if self.is_old else store.datasets()
        if text.isascii() and text.isdecimal() and len(text) < 9:
            self.rank = int(text)

    def batches(self, where: str, values: Iterable[Any] = ()) -> list[Batch]:
        if self.is_old:
            return []
        with reader.Store(self.path) as store:
            return list(store.batches(where, tuple(values)))

    def dataset_of(self, batch: Batch) -> Dataset:
        return self.datasets.get(batch.dataset, ("?", None))

    def named(self) -> dict[tuple[str, int], list[int]]:
        """{(optimizer, step): samples that its alarm names}"""
        found = {}
        for event in events.read(self.folder)[0]:
            if event["kind"] == "alarm" and event.get("samples") and event["step"] is not None:
                found[event.get("optimizer", ""), event["step"]] = event["samples"]
        return found


def processes(run: str) -> list[Process]:
    """Raises reader.Unreadable, OSError; NoRows where none of them has any."""
    folders = [f for f in runs.processes(run) if os.path.lexists(os.path.join(f, reader.NAME))]
    if not folders:
        raise reader.Unreadable(f"it has no {reader.NAME}")
    found = [Process(folder, rank) for rank, folder in enumerate(folders)]
    if all(one.is_old for one in found):
        raise NoRows("its store is of a version that keeps no rows")
    if all(one.is_redacted for one in found):
        raise NoRows("it was recorded with --redact, which keeps no rows")
    if not any(one.datasets for one in found):
        raise NoRows(
            "no step has rows: its batches come from no DataLoader with an index sampler, or their indices are no "
            "whole numbers"
        )
    return [one for one in found if not one.is_old]


class BadStep:
    """A step of one optimizer with an alarm or a spike, in one process."""

    def __init__(self, process: Process, batches: list[Batch], named: list[int]):
        self.process, self.batches = process, batches
        self.step, self.optimizer, self.event = batches[0].step, batches[0].optimizer, batches[0].event
        self.rows: set[Row] = {(process.dataset_of(one), row) for one in batches for row in one.ids}
        self.named: set[Row] = {row for row in self.rows if row[1] in set(named)}


def bad_steps(found: list[Process]) -> list[BadStep]:
    """In order; at most MOST_STEPS, the newest."""
    steps: list[BadStep] = []
    for process in found:
        named = process.named()
        grouped: dict[tuple[int, str], list[Batch]] = {}
        for batch in process.batches("event IN (?, ?)", BAD):
            grouped.setdefault((batch.step, batch.optimizer), []).append(batch)
        for (step, optimizer), batches in list(grouped.items())[-MOST_STEPS:]:
            samples = named.get((_class_of(optimizer), step), []) if batches[0].event == "alarm" else []
            steps.append(BadStep(process, batches, samples))
    return sorted(steps, key=lambda one: (one.step, one.process.rank))[-MOST_STEPS:]


def _class_of(optimizer):
    """Of "Adam (2)", as a store has the second of a class."""
    return optimizer.partition(" (")[0]


class Common:
    """A row, how many bad steps it is in, and how many others. lift: its share of the bad ones over that of the
    others; None where it is in none of these."""

    __slots__ = ("row", "bad", "other", "lift")

    def __init__(self, row: Row, bad: int, other: int, of_bad: int, of_other: int):
        self.row, self.bad, self.other = row, bad, other
        self.lift = (bad / of_bad) / (other / of_other) if other and of_bad else None


class Shared:
    """Rows that are in several bad steps, those in most of them first. steps: how many bad ones; others: how many of
    the others there are."""

    def __init__(self, found: list[Process], steps: list[BadStep]):
        self.steps, self.others = len(steps), 0
        counts: dict[Row, int] = {}
        for step in steps:
            for row in step.rows:
                counts[row] = counts.get(row, 0) + 1
        several = {row: count for row, count in counts.items() if count > 1}
        elsewhere = dict.fromkeys(several, 0)
        for process in found if several else ():
            self._count_elsewhere(process, elsewhere)
        self.rows = [Common(row, n, elsewhere[row], self.steps, self.others) for row, n in several.items()]
        self.rows.sort(key=lambda one: (-one.bad, one.other, one.row[0][0], one.row[1]))

    def _count_elsewhere(self, process, elsewhere):
        last = None
        seen: set[Row] = set()
        for batch in process.batches("event IS NULL OR event NOT IN (?, ?)", BAD):
            if (batch.step, batch.optimizer) != last:
                last, seen = (batch.step, batch.optimizer), set()
                self.others += 1
            dataset = process.dataset_of(batch)
            for row in {(dataset, one) for one in batch.ids} - seen:
                seen.add(row)
                if row in elsewhere:
                    elsewhere[row] += 1

    def in_each(self) -> list[Row]:
        return [one.row for one in self.rows if one.bad == self.steps]


def to_skip(steps: list[BadStep]) -> list[skip_list.Skipped]:
    """The rows that alarms name; of the other bad steps the rows that all of them share, or all of them where they
    share none. Raises skip_list.Unreadable where there are too many."""
    rows: set[Row] = set().union(*(one.named for one in steps))
    others = [one.rows for one in steps if not one.named and not one.rows & rows]
    if others:
        rows |= set.intersection(*others) or set().union(*others)
    return listed(rows)


def listed(rows: Iterable[Row]) -> list[skip_list.Skipped]:
    return skip_list.joined(skip_list.Skipped(*dataset, [row]) for dataset, row in sorted(rows, key=str) if row >= 0)


def skip_list_of(run: str) -> list[skip_list.Skipped]:
    """Of the bad steps of a run. Raises NoRows, reader.Unreadable, OSError, skip_list.Unreadable."""
    return to_skip(bad_steps(processes(run)))
