"""Medians with their uncertainty, and what may be said of a cell. No torch: the page is made without it."""

import dataclasses
import random
import statistics


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A median with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    count: int

    def scaled(self, factor, shift=0.0):
        ends = sorted((self.low * factor + shift, self.high * factor + shift))
        return Estimate(self.value * factor + shift, ends[0], ends[1], self.count)


def median_of(values, resamples=2000, seed=1):
    """The median and its percentile bootstrap interval. One value has no interval: it spans everything."""
    values = list(values)
    if not values:
        return None
    middle = statistics.median(values)
    if len(values) == 1:
        return Estimate(middle, float("-inf"), float("inf"), 1)
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples))
    return Estimate(middle, medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1], len(values))


def pair_ratio(times, over):
    """median of times[i] / over[i], pairs taken in the same round."""
    return median_of(a / b for a, b in zip(times, over))


def pair_difference(times, over):
    return median_of(a - b for a, b in zip(times, over))


GATE = ("hook", "loss", "gradients", "verdict", "ring", "buffer check")
REWIND = ("rng", "buffers", "frames", "loader")
OTHER = ("written", "undo")


def in_place(result, pieces):
    """Nanoseconds of these pieces per step, by the meter, with what torch spends on reaching them."""
    if not result.get("pieces"):
        return None
    through = result["call_through"]
    loader = through["loader"] if result["spec"].get("loader", True) else 0
    reach = 0.0
    if "hook" in pieces:
        reach += (
            through["hook"]
            + through["backward"]
            + (through["clip"] if result["spec"]["optimizer"].endswith("clip") else 0)
        )
    if "loader" in pieces:
        reach += loader
    return median_of(sum(one[p][0] for p in pieces) + reach for one in result["pieces"])


# -- what has to hold
# ---------------------------------------------------------------------------------------------------

MEDIAN_PERCENT = 0.5  # component figure, median over the table
CELL_PERCENT = 1.0  # of each cell whose step is longer than a millisecond
FEW_ROWS_PERCENT = 2.0  # of cells that do little work per weight with a fused optimizer
FEW_ROWS = 100
CHECK_POINTS = 1.5  # the pairs' upper bound may be that far above the component figure
GATE_US, REWIND_US = 4.0, 8.0
MEMORY_MB = 64
TRACED = 2.0


def limit_of(step_ns, rows, fused):
    if step_ns <= 1e6:
        return None
    return FEW_ROWS_PERCENT if fused and rows < FEW_ROWS else CELL_PERCENT


def judge(component, paired, limit):
    """ "holds", "missed", "undecided", or "-" where nothing was promised. component and paired: Estimates in percent.

    The component figure is compared with the limit; the pairs are the check of the component figure, and where their
    noise leaves more room than CHECK_POINTS above it the cell is undecided, whatever else it shows.
    """
    if component is None or paired is None:
        return "undecided"
    if limit is not None and component.value > limit:
        return "missed"
    if paired.low > component.value + CHECK_POINTS:
        return "missed"  # the pairs show more than the pieces explain
    if not paired.high <= component.value + CHECK_POINTS:
        return "undecided"
    return "-" if limit is None else "holds"
