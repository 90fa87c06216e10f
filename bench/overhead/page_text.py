"""Figures and tables as the page writes them."""

from . import stats
from .cells import OPTIMIZER_TEXT, ROWS


def percent(e, digits=2):
    return "-" if e is None else f"{e.value:.{digits}f}"


def interval(e, digits=1):
    return "-" if e is None else f"{e.value:+.{digits}f} [{e.low:+.{digits}f}, {e.high:+.{digits}f}]"


def table(head, rows):
    if not rows:
        return ["(not measured)", ""]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(r) + " |" for r in rows), ""]


def _as_percent(ratio):
    return None if ratio is None else ratio.scaled(100, -100)


def paired(result, arm, over="off", clock="cpu"):
    times = result[clock]
    return _as_percent(stats.pair_ratio(times[arm], times[over])) if arm in times else None


def order(result):
    """By model, then optimizer: of rows and columns."""
    spec = result["spec"]
    return (list(ROWS).index(spec["kind"]), list(OPTIMIZER_TEXT).index(spec["optimizer"]))
