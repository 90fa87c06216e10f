"""What had to hold: of each goal (what it is, what was found, the verdict), and a line for each that was not reached."""

import statistics

from . import stats
from .cells import MODEL_TEXT, OPTIMIZER_TEXT
from .page_text import interval


def _whole(missed, undecided):
    return "missed" if missed else "undecided" if undecided else "holds"


def cell_goals(cells):
    """(goals, not reached) of the shares of a step. `cells`: page_cells.Own."""
    decided = [c for c in cells if c.all is not None]
    if not decided:
        return [], []
    missed = []
    middle = statistics.median(c.all.value for c in decided)
    state = "holds" if middle <= stats.MEDIAN_PERCENT else "missed"
    goals = [[f"median over the table, by pieces, at most {stats.MEDIAN_PERCENT:g} %", f"{middle:.2f} %", state]]
    if state != "holds":
        missed.append(f"median over the table: {middle:.2f} %, goal {stats.MEDIAN_PERCENT:g}")
    counted = [c for c in decided if c.limit is not None]
    said = {v: sum(c.verdict == v for c in counted) for v in ("holds", "missed", "undecided")}
    worst = max(counted, key=lambda c: c.all.value / c.limit, default=None)
    if worst is not None:
        goals.append(
            [
                f"each step over 1 ms at most {stats.CELL_PERCENT:g} % "
                f"({stats.FEW_ROWS_PERCENT:g} % with fewer than "
                f"{stats.FEW_ROWS} rows per weight and a fused optimizer), and the pairs agree",
                f"{said['holds']} hold, {said['missed']} missed, {said['undecided']} undecided; "
                f"largest {worst.all.value:.2f} % "
                f"({MODEL_TEXT[worst.spec['kind']]}, {OPTIMIZER_TEXT[worst.spec['optimizer']]}, "
                f"{worst.spec['threads']} threads)",
                _whole(said["missed"], said["undecided"]),
            ]
        )
    for c in counted:
        if c.verdict != "holds":
            missed.append(
                f"{c.spec['kind']} {c.spec['optimizer']} {c.spec['threads']} threads: {c.verdict} (pieces "
                f"{c.all.value:.2f} %, pairs {interval(c.paired)}, control {interval(c.control)})"
            )
    return goals, missed


def fixed_goal(rows, missed):
    """The same of the fixed cost; both arguments are what page_cells.fixed_rows returns."""
    goal = [
        f"fixed cost at most {stats.GATE_US:g} us for the gate, {stats.REWIND_US:g} us with what a rewind needs",
        "; ".join(f"{r[2]} and {r[5]} us ({r[0]})" for r in rows),
        _whole(any("missed" in m for m in missed), missed),
    ]
    return [goal] if rows else [], missed


def memory_goal(rows, missed):
    """The same of the memory; both arguments are what page_cells.memory_rows returns."""
    if not rows:
        return [], missed
    largest = max((r[3] for r in rows), key=float)
    return [[f"memory at most {stats.MEMORY_MB} MB", f"largest {largest} MB", _whole(missed, False)]], missed


def traced_goals(traced):
    """The same of traced steps; `traced`: what page_compare.traced_verdicts returns."""
    goals, missed = [], []
    for arm, text in (("trace", "`--level trace`"), ("armed", "an armed step")):
        of_arm = [t for t in traced if t[2] == arm]
        if not of_arm:
            continue
        states = {t[4] for t in of_arm}
        goals.append(
            [
                f"{text} at most {stats.TRACED:g} times a step",
                f"{min(t[3].value for t in of_arm):.2f} to {max(t[3].value for t in of_arm):.2f}",
                _whole("missed" in states, "undecided" in states),
            ]
        )
        missed += [
            f"{text}, {t[0]}, {t[1]} threads: {t[4]} ({t[3].value:.2f} [{t[3].low:.2f}, {t[3].high:.2f}])"
            for t in of_arm
            if t[4] != "holds"
        ]
    return goals, missed
