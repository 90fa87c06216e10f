"""A picture of the course of a run: loss, norm of the gradients, learning rate, and what happened. Matplotlib draws it,
without a display."""

from __future__ import annotations

import os
from typing import Any

from ..base import pages
from ..store import events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.reader import Point
    from .points import Process

# In the order of the rows. A program that does not clip has no norm.
ROWS = (("loss", "Loss"), ("gradient_norm", "Gradient norm"), ("learning_rate", "Learning rate"))
_WITHOUT_NORM = ("gradient_absmax", "Largest gradient")
_INCHES = 10.0, 7.5
_MOST_LINES = 16  # of a row
_MOST_MARKS = 200  # of a kind
_LOG_FACTOR = 100  # between the smallest and the largest value, from which on an axis is logarithmic
_MARKS = {"alarm": ("#c62828", "-"), "warning": ("#b05a00", ":"), "checkpoint": ("#2f7a4d", "--")}


def write(path: str, run: str, processes: Sequence[Process]) -> str:
    """As PNG, whole or not at all. Raises ImportError, OSError, reader.Unreadable."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = _lines_of(processes)
    rows = [lines_and_title for row in ROWS if (lines_and_title := _row(lines, *row))[0]]
    figure: Any = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(max(1, len(rows)), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (found, title) in zip(axes, rows):
        for name, points in found[:_MOST_LINES]:
            _draw(axis, name, points)
        axis.set_ylabel(title)
        if len(found) > 1:
            axis.legend(fontsize="small")
    _mark(axes, processes)
    axes[-1].set_xlabel("Step")
    figure.suptitle(run.replace("$", r"\$"))
    with pages.whole(path) as f:
        figure.savefig(f, format="png", dpi=120, metadata={"Software": "finitude"})
    return path


def _lines_of(processes):
    """{quantity: [(name, points)]} of whole optimizers."""
    found: dict[str, list[tuple[str, list[Point]]]] = {}
    for process in processes:
        for series, points in process.points():
            values = [p for p in points if p.last is not None]
            if series.parameter is None and values:
                name = series.optimizer if process.is_alone else f"rank {process.rank}, {series.optimizer}"
                found.setdefault(series.quantity, []).append((name.replace("$", r"\$"), values))
    return found


def _row(lines, quantity, title):
    if quantity == "gradient_norm" and quantity not in lines:
        quantity, title = _WITHOUT_NORM
    return lines.get(quantity, []), title


def _draw(axis, name, points):
    steps = [p.last_step for p in points]
    lows = [p.last if p.min is None else p.min for p in points]
    highs = [p.last if p.max is None else p.max for p in points]
    (line,) = axis.plot(steps, [p.last for p in points], linewidth=1, label=name)
    axis.fill_between(steps, lows, highs, color=line.get_color(), alpha=0.2, linewidth=0)
    if min(lows) > 0 and max(highs) > _LOG_FACTOR * min(lows):
        axis.set_yscale("log")


def _mark(axes, processes):
    """What happened, as lines through all rows."""
    from matplotlib.lines import Line2D

    steps: dict[str, set[int]] = {kind: set() for kind in _MARKS}
    for process in processes:
        for event in events.read(os.path.dirname(process.path))[0]:
            if event["kind"] in steps and event["step"] is not None and len(steps[event["kind"]]) < _MOST_MARKS:
                steps[event["kind"]].add(event["step"])
    for kind, (colour, style) in _MARKS.items():
        for step in sorted(steps[kind]):
            for axis in axes:
                axis.axvline(step, color=colour, linestyle=style, linewidth=1)
    line: Any = Line2D  # whose types are stricter than a table of styles
    handles = [
        line([], [], color=_MARKS[kind][0], linestyle=_MARKS[kind][1], label=kind)
        for kind, found in steps.items()
        if found
    ]
    if handles:
        axes[0].figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize="small")
