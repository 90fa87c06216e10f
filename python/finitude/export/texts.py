"""Forms that are text: CSV, JSON lines and the exposition format of Prometheus."""

from __future__ import annotations

import csv
import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TextIO

    from .points import Process

COLUMNS = (
    "rank", "quantity", "optimizer", "parameter", "step", "last_step", "time", "first", "last", "min", "max",
)  # fmt: skip


def rows(processes: Sequence[Process]) -> Iterator[tuple[Any, ...]]:
    """A tuple of COLUMNS for each point."""
    for process in processes:
        for series, points in process.points():
            about = process.rank, series.quantity, series.optimizer, series.parameter or ""
            for p in points:
                yield *about, p.step, p.last_step, p.time, p.first, p.last, p.min, p.max


def write_csv(out: TextIO, processes: Sequence[Process]) -> None:
    """With a head; an empty cell where there is no finite value."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows(processes))


def write_jsonl(out: TextIO, processes: Sequence[Process]) -> None:
    """An object for each point, with the keys of COLUMNS."""
    for row in rows(processes):
        out.write(json.dumps(dict(zip(COLUMNS, row)), allow_nan=False) + "\n")


def _label(text):
    """A value in quotation marks."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class Newest:
    """The newest values, by name of a metric: [(labels, value, Unix seconds or None)]."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[tuple[str, float, float | None]]] = {}

    def add(self, name: str, labels: dict[str, str], value: float, at: float | None = None) -> None:
        labelled = ",".join(f"{key}={_label(text)}" for key, text in labels.items() if text)
        self.metrics.setdefault(name, []).append((labelled, value, at))

    def text(self) -> str:
        lines = []
        for name, values in self.metrics.items():
            lines.append(f"# TYPE {name} gauge")
            for labels, value, at in values:
                stamp = f" {round(at * 1000)}" if at is not None and 0 < at < 1e11 else ""
                lines.append(f"{name}{{{labels}}} {value!r}{stamp}" if labels else f"{name} {value!r}{stamp}")
        return "".join(f"{line}\n" for line in lines)


def metric_of(quantity: str, parameter: str | None) -> str:
    """finitude_loss, finitude_parameter_gradient_absmax"""
    word = re.sub(r"[^a-zA-Z0-9_]", "_", quantity)
    return f"finitude_parameter_{word}" if parameter else f"finitude_{word}"


def add_newest(newest: Newest, run: str, process: Process, has_time: bool = True) -> None:
    """The last value of each series of the process, and the step that it is of."""
    steps: dict[str, int] = {}
    for series, points in process.points():
        steps[series.optimizer] = max([steps.get(series.optimizer, 0), *(p.last_step for p in points[-1:])])
        last = next((p for p in reversed(points) if p.last is not None), None)
        if last is not None and last.last is not None:
            labels = {"run": run, "rank": str(process.rank), "optimizer": series.optimizer}
            if series.parameter:
                labels["parameter"] = series.parameter
            at = last.time if has_time else None
            newest.add(metric_of(series.quantity, series.parameter), labels, last.last, at)
    for optimizer, step in steps.items():
        newest.add("finitude_step", {"run": run, "rank": str(process.rank), "optimizer": optimizer}, step)
