"""A skip list: rows of data sets that are not to be drawn, as JSON lines. Loads no torch."""

from __future__ import annotations

import json
import os
import re

from . import pages, plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

MOST_BYTES = 64 << 20
MOST_IDS = 1_000_000  # of all data sets together
MOST_DATASETS = 64
MOST_ID = 2**62
_NAME = re.compile(r"[^\W\d]\w{0,199}")


class Unreadable(ValueError):
    """It is no skip list, or too large."""


class Skipped:
    """The rows of one data set, which is known by its class and its length. length None: any."""

    __slots__ = ("dataset", "length", "ids")

    def __init__(self, dataset: str, length: int | None, ids: Iterable[int]):
        self.dataset, self.length, self.ids = dataset, length, sorted(set(ids))

    def is_of(self, dataset: str, length: int | None) -> bool:
        return self.dataset == dataset and (self.length is None or self.length == length)


def _of_line(line):
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        raise Unreadable("a line is no JSON") from None
    if not isinstance(given, dict):
        raise Unreadable("a line is no object")
    dataset, length, ids = given.get("dataset"), given.get("length"), given.get("ids")
    if not isinstance(dataset, str) or not _NAME.fullmatch(dataset):
        raise Unreadable("a line names no data set")
    if length is not None and (type(length) is not int or not 0 <= length < MOST_ID):
        raise Unreadable(f"the length of {dataset} is no number of rows")
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < MOST_ID for one in ids):
        raise Unreadable(f"the ids of {dataset} are not whole numbers from 0 on")
    return Skipped(dataset, length, ids)


def read(path: str | os.PathLike[str]) -> list[Skipped]:
    """One of each data set. Raises Unreadable, OSError."""
    with plain_file.opened(path) as f:
        data = plain_file.first(f, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES >> 20} MB")
    return joined(_of_line(line) for line in data.splitlines() if line.strip())


def joined(lists: Iterable[Skipped]) -> list[Skipped]:
    """One of each data set. Raises Unreadable where they are too many."""
    found: dict[tuple[str, int | None], set[int]] = {}
    for one in lists:
        found.setdefault((one.dataset, one.length), set()).update(one.ids)
    if len(found) > MOST_DATASETS or sum(map(len, found.values())) > MOST_IDS:
        raise Unreadable(f"it names more than {MOST_IDS} rows, or {MOST_DATASETS} data sets")
    return [Skipped(dataset, length, ids) for (dataset, length), ids in found.items()]


def write(path: str, lists: Sequence[Skipped]) -> None:
    """The file, whole or not at all. Raises OSError."""
    lines: list[dict[str, Any]] = [
        {"schema": 1, "dataset": one.dataset, "length": one.length, "ids": one.ids} for one in lists
    ]
    pages.write_whole(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
