"""The points of all processes of a run, one after the other."""

from __future__ import annotations

import os

from ..store import reader, runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..store.reader import Point, Series


class Process:
    """One that left a store. rank: as its store says, else its place among them."""

    def __init__(self, folder: str, rank: int, is_alone: bool):
        self.path, self.rank, self.is_alone = os.path.join(folder, reader.NAME), rank, is_alone
        with reader.Store(self.path) as store:
            self.info = store.info()
        text = self.info.get("rank", "")
        if text.isascii() and text.isdecimal() and len(text) < 9:
            self.rank = int(text)

    def points(self) -> Iterator[tuple[Series, list[Point]]]:
        """Each series with its points. Raises reader.Unreadable."""
        with reader.Store(self.path) as store:
            for one in store.series():
                yield one, store.points(one.id)

    def name_of(self, series: Series) -> str:
        """Of a series among those of all processes."""
        return series.name() if self.is_alone else f"rank{self.rank}/{series.name()}"


def processes(run: str) -> list[Process]:
    """Raises reader.Unreadable, OSError."""
    folders = [f for f in runs.processes(run) if os.path.lexists(os.path.join(f, reader.NAME))]
    if not folders:
        raise reader.Unreadable(f"it has no {reader.NAME}")
    return [Process(folder, rank, len(folders) == 1) for rank, folder in enumerate(folders)]
