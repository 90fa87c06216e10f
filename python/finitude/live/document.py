"""What the page shows of a run, as JSON. Files are read as they are at this moment."""

from __future__ import annotations

import array
import base64
import json
import math
import os
import sys
import time

from ..store import events, reader, runs
from . import onset, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..store.reader import Largest, Point

COLUMNS = 240  # of the map of parameters
MOST_RANKS = 8  # that are shown
MOST_ROWS = 4000  # parameters of the map
_PER_OCTAVE = 64  # steps of a value of the map
_NONE = -32768
MAPS = ("gradient_absmax", "weight_absmax", "update_ratio")
# The exponents of the largest finite numbers.
_EXPONENTS = {
    "float16": 16,
    "bfloat16": 128,
    "float32": 128,
    "float64": 1024,
    "complex32": 16,
    "complex64": 128,
    "complex128": 1024,
}


def columns_of(points: Iterable[Point]) -> dict[str, list[float | None]]:
    """A list for each key of a point, which is far smaller than an object for each."""
    keys = ("step", "last_step", "last", "min", "max")
    rows = [(p.step, p.last_step, _short(p.last), _short(p.min), _short(p.max)) for p in points]
    return {key: list(column) for key, column in zip(keys, zip(*rows))} if rows else {key: [] for key in keys}


def _short(value):
    """With the digits that a chart shows."""
    return value if value is None else float(f"{value:.6g}")


class TooMuch(Exception):
    """Reading took longer than the limit."""


class Limits:
    """For a program that ends, and does not wait for its page. seconds: of this thread's CPU, for the series.
    map_bytes: a larger store has no map, because that reads every point."""

    def __init__(self, seconds: float, map_bytes: int):
        self._until, self._map_bytes = time.thread_time() + seconds, map_bytes

    def check(self) -> None:
        """Raises TooMuch."""
        if time.thread_time() > self._until:
            raise TooMuch

    def allows_maps(self, run: str) -> bool:
        paths = [os.path.join(folder, reader.NAME) for folder in runs.processes(run)]
        return sum(os.path.getsize(path) for path in paths if os.path.isfile(path)) <= self._map_bytes


class Follower:
    """Knows what of a run was handed out, and hands out what came since."""

    def __init__(self, run: str, limits: Limits | None = None):
        self.run, self._limits = run, limits
        self._state = runs.State(run)
        self._sent: dict[str, Any] = {}
        self._settings: dict[str, str] = {}

    def changes(self) -> dict[str, Any]:
        """{"name", "state", "processes"}, and "settings" where they have changed: of each process the series and events
        that are new. A series with "replace" is whole: it was not sent before, or became coarser."""
        found = []
        for place, folder in enumerate(runs.processes(self.run)[:MOST_RANKS]):
            sent = self._sent.setdefault(folder, {"inode": 0, "series": {}, "offset": 0})
            new: dict[str, Any] = {"key": os.path.basename(folder) if place else "", "series": [], "events": []}
            new["events"], sent["offset"] = events.read(folder, sent["offset"])
            path = os.path.join(folder, reader.NAME)
            try:
                inode = os.stat(path).st_ino
                if inode != sent["inode"]:  # of a run that began again
                    sent.update(inode=inode, series={})
                with reader.Store(path) as store:
                    self._add_series(store, sent["series"], new)
            except FileNotFoundError:
                pass
            except (OSError, reader.Unreadable) as e:
                new["trouble"] = f"{reader.NAME}: {e}"
            found.append(new)
        changed: dict[str, Any] = {"name": os.path.basename(self.run), "state": self._state.now(), "processes": found}
        now = next(filter(None, map(settings.of_run, [self.run, *runs.processes(self.run)[:1]])), {})
        if now != self._settings:
            self._settings = changed["settings"] = now
        return changed

    def _add_series(self, store, sent, new):
        if not sent:
            new["info"] = store.info()
        every = store.series()
        whole = {s.id: s for s in every if s.parameter is None}
        new["parameters"] = sum(s.parameter is not None for s in every)
        if made := onset.strips(store, every, new["events"]):
            new["strips"] = made
        for number, (width, last, count) in store.range(list(whole)).items():
            if self._limits is not None:
                self._limits.check()
            before = sent.get(number)
            if before == (width, last, count):
                continue
            # The last point that was sent may have grown. Points are joined from the oldest on.
            is_same = before is not None and before[0] == width and before[2] <= count
            points = store.points(number, before[1] if is_same else 0)
            sent[number] = (width, last, count)
            of = {"id": number, "quantity": whole[number].quantity, "optimizer": whole[number].optimizer}
            new["series"].append({**of, "replace": not is_same, **columns_of(points)})


def packed(found: Largest) -> dict[str, Any]:
    """The map of one quantity: base-2 logarithms as 16-bit numbers, a row for each parameter."""
    rows = len(found.names[:MOST_ROWS])
    numbers = array.array("h", [_NONE]) * (rows * found.columns)
    at = 0
    for row in found.values[:rows]:
        for value in row:
            if value is not None and value > 0:
                numbers[at] = max(_NONE + 1, min(32767, round(math.log2(value) * _PER_OCTAVE)))
            at += 1
    if sys.byteorder == "big":
        numbers.byteswap()
    return {
        "names": found.names[:rows],
        "more": len(found.names) - rows,
        "first": found.first,
        "last": found.last,
        "columns": found.columns,
        "perOctave": _PER_OCTAVE,
        "values": base64.b64encode(numbers.tobytes()).decode("ascii"),
    }


def maps(run: str) -> list[dict[str, Any]]:
    """Of each optimizer of the first process that has parameters: {"optimizer", "exponents", and the map of each of
    MAPS}. exponents: of each name of gradient_absmax, the base-2 logarithm of the first power of two beyond the largest
    number of its dtype; null where that is not known."""
    for folder in runs.processes(run):
        try:
            with reader.Store(os.path.join(folder, reader.NAME)) as store:
                names = dict.fromkeys(s.optimizer for s in store.series() if s.parameter is not None)
                found = [_maps_of(store, name) for name in names]
        except (OSError, reader.Unreadable):
            continue
        if found:
            return found
    return []


def _maps_of(store, optimizer):
    made = {one: packed(store.largest(one, optimizer, COLUMNS)) for one in MAPS}
    dtypes = store.dtypes(optimizer)
    exponents = [_EXPONENTS.get(dtypes.get(name, "")) for name in made["gradient_absmax"]["names"]]
    return {"optimizer": optimizer, "exponents": exponents, **made}


def still(run: str, limits: Limits | None = None) -> dict[str, Any]:
    """All that the page shows of one run, for a page that needs no server. Raises TooMuch."""
    has_maps = limits is None or limits.allows_maps(run)
    shown = Follower(run, limits).changes()
    shown.pop("settings", None)  # which compare runs
    return {"live": False, "runs": [shown], "maps": maps(run) if has_maps else []}


def in_script(document: Any) -> str:
    """The JSON as it may be in a script element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
