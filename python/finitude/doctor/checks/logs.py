"""What the curves of a training show that another tool logged."""

import math

from ..facts import growth_to_end, slope
from ..registry import bad, check, note, warn

WINDOW = 25  # records before one that say what is usual
LEAST = 8  # records before anything is usual
SPIKE = {"loss": 3.0, "gradient": 20.0}  # times the median, and as many times the usual distance from it
DEVIATIONS = 10.0
GREW = 2.0  # times its best value, at the end
BLEW = 1e3
NULLS = 3  # records at the end, and twice as many as ever in a row before
STUCK = 8  # records with one value
MOST_SHOWN = 5
MOST_POINTS = 2000  # that are smoothed


def _rate(log, step):
    rate = log.rate(step)
    return f" (learning rate {rate:.3g})" if rate is not None else ""


def _median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


@check("P20", "logged-non-finite", "log")
def first_non_finite(log):
    """The first step at which a logged loss or gradient norm is NaN or Inf, with the last finite values and the
    learning rate there; a note for other quantities, and for those of held-out data a warning, as for one that is null
    from some record on to the end: JSON has no NaN."""
    for series in log.series.values():
        if series.role in ("loss", "gradient") and series.nulls >= max(NULLS, 2 * series.longest_nulls):
            yield warn(
                f"{series.name} is null from step {series.null_since} to the end, in {series.nulls} records; the last "
                f"number is {series.values[-1]:.5g} at step {series.steps[-1]}: JSON has no NaN, for which many write "
                "null",
                "finitude run says whether it is NaN, and where it is born",
                None,
                name=series.name,
                step=series.null_since,
                count=series.nulls,
            )
        first = next((i for i, v in enumerate(series.values) if not math.isfinite(v)), None)
        if first is None:
            continue
        count = sum(not math.isfinite(v) for v in series.values)
        step, value = series.steps[first], series.values[first]
        before = next((i for i in range(first - 1, -1, -1) if math.isfinite(series.values[i])), None)
        last = (
            f"; the last finite one is {series.values[before]:.5g} at step {series.steps[before]}"
            if before is not None
            else "; no finite one was logged before"
        )
        word = "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
        text = (
            f"{series.name} is {word} at step {step}{_rate(log, step)}: the first of {count} of "
            f"{len(series.values)} records{last}"
        )
        is_watched = series.role in ("loss", "gradient")
        make = note if not is_watched else warn if series.is_held_out else bad
        advice = "finitude run names the operation and line where it is born" if is_watched else ""
        yield make(text, advice, None, name=series.name, step=step, count=count, lr=log.rate(step))


@check("P21", "logged-spikes", "log")
def spikes(log):
    """Single records of a loss or a gradient norm far above those before: 3 and 20 times the median, and 10 times the
    usual distance from it, with the learning rate there."""
    for role, times in SPIKE.items():
        for series in log.of(role):
            found = []
            kept = []  # those that are usual
            for step, value in zip(series.steps, series.values):
                recent = kept[-WINDOW:]
                if len(recent) >= LEAST and math.isfinite(value):
                    usual = _median(recent)
                    spread = _median([abs(v - usual) for v in recent])
                    if value > times * abs(usual) and value - usual > DEVIATIONS * spread and value > usual:
                        found.append((step, value, usual))
                        continue
                if math.isfinite(value):
                    kept.append(value)
            if found and len(found) <= max(3, len(series.values) // 10):  # more of them are growth
                shown = ", ".join(
                    f"step {step}: {value:.4g}, usual {usual:.4g}{_rate(log, step)}"
                    for step, value, usual in found[:MOST_SHOWN]
                )
                more = f" and {len(found) - MOST_SHOWN} more" * (len(found) > MOST_SHOWN)
                yield (warn if role == "loss" else note)(
                    f"{series.name} jumps in {len(found)} of {len(series.values)} records: {shown}{more}",
                    "look at the samples of these steps, or clip the gradients",
                    None,
                    name=series.name,
                    steps=[step for step, _, _ in found[:64]],
                )


@check("P22", "logged-growth", "log")
def growth(log):
    """A loss that ends at twice its best value and more, or a gradient norm or loss that grew a thousandfold, with the
    step since which it does and the factor in each record."""
    for role in ("loss", "gradient"):
        for series in log.of(role):
            points = [(s, v) for s, v in zip(series.steps, series.values) if math.isfinite(v)]
            if len(points) < 2 * LEAST:
                continue
            points = points[:: 1 + len(points) // MOST_POINTS]
            width = max(LEAST, len(points) // 10)
            smooth = [
                (points[i][0], _median([v for _, v in points[max(0, i - width) : i + 1]]))
                for i in range(width, len(points))
            ]
            at = min(range(len(smooth)), key=lambda i: smooth[i][1])
            (since, low), (step, high) = smooth[at], smooth[-1]
            if low <= 0 or len(smooth) - at < LEAST:
                continue
            values = [v for _, v in points]
            if min(values[-width:]) <= max(values[at : at + width + 1]):
                continue  # it goes up and down
            factor = high / low
            if factor < (GREW if role == "loss" else BLEW):
                continue
            if found := growth_to_end(values):
                index, low, each = found
                (since, _), (step, high) = points[index], points[-1]
                factor, steady = high / low, f", by {each:.3g} in each record"
            else:
                ratio, fit = slope([v for _, v in smooth[at:]])
                each = ratio ** (1 / max(1, len(smooth) - at - 1))
                steady = f", by {each:.3g} in each record" if fit > 0.8 else ""
            yield (bad if factor >= BLEW else warn)(
                f"{series.name} grew from {low:.4g} at step {since}{_rate(log, since)} to {high:.4g} at step {step}"
                f"{_rate(log, step)}{steady}",
                "a lower learning rate, or a checkpoint from before that step",
                None,
                name=series.name,
                since=since,
                factor=factor,
            )


@check("P23", "logged-skips", "log")
def skipped_steps(log):
    """Steps that changed nothing: a loss scale below 1 or halved in each of many records, a loss that is the very same
    number in eight records and more while the learning rate is not zero, a loss of exactly 0 while gradients are not
    finite."""
    for series in log.of("scale"):
        values = [(s, v) for s, v in zip(series.steps, series.values) if math.isfinite(v) and v > 0]
        low = min(values, key=lambda p: p[1], default=None)
        if low is not None and low[1] < 1:
            yield bad(
                f"{series.name} fell to {low[1]:.3g} at step {low[0]}{_rate(log, low[0])}: a GradScaler halves it with "
                "each step that it skips, so that the gradients overflow at any scale",
                "finitude run explains the steps that are skipped; bfloat16 needs no scaler",
                None,
                name=series.name,
                step=low[0],
            )
        falls = longest = 0
        for (_, a), (_, b) in zip(values, values[1:]):
            falls = falls + 1 if b < a else 0
            longest = max(longest, falls)
        if longest >= STUCK and (low is None or low[1] >= 1):
            yield warn(f"{series.name} fell in {longest} records in a row: each of them had steps that were skipped",
                       "finitude run explains them", None, name=series.name)  # fmt: skip
    for series in log.of("loss"):
        start, found = 0, None
        for i in range(1, len(series.values) + 1):
            if i < len(series.values) and series.values[i] == series.values[start]:
                continue
            if i - start >= STUCK and math.isfinite(series.values[start]) and (found is None or i - start > found[1]):
                found = start, i - start
            start = i
        if found is None:
            continue
        at, count = found
        step, value, rate = series.steps[at], series.values[at], log.rate(series.steps[at])
        if rate == 0:
            continue
        broken = [
            g.name
            for g in log.of("gradient")
            if any(not math.isfinite(v) for s, v in zip(g.steps, g.values) if step <= s <= series.steps[at + count - 1])
        ]
        if value == 0 and broken:
            yield bad(
                f"{series.name} is exactly 0 from step {step} on in {count} records while {broken[0]} is not finite: a "
                "loss that is NaN is logged as 0",
                "logging_nan_inf_filter=False in TrainingArguments; finitude run names where it is born",
                None,
                name=series.name,
                step=step,
            )
        else:
            yield (note if value == 0 else warn)(
                f"{series.name} is the same number, {value:.6g}, in {count} records from step {step} on"
                f"{_rate(log, step)}: steps that are skipped leave the weights as they are",
                "look for a GradScaler that skips, or gradients that are all zero",
                None,
                name=series.name,
                step=step,
                records=count,
            )
