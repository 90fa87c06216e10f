"""Which samples of the data set the guilty rows of a batch are, where the sampler recorded them."""

from __future__ import annotations

from ..program import step_start_state
from . import row_order, sample_origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm, Findings


def with_samples(found: Findings) -> Findings:
    """The findings with what the data set shows of a birth in the data, and with the indices of the step's batches, one
    list for each that it used, in order."""
    batches, sources = step_start_state.take_samples()
    sample_origin.add_to(found, sources)
    if any(batches) and found.get("births"):
        found["samples"] = [_in_order(found, indices, source) for indices, source in zip(batches, sources)]
    return found


def _in_order(found, indices, source):
    """The samples as they lie in the batch; None for rows of which it is not known, or that nobody asks for."""
    if not isinstance(indices, list) or not row_order.reorders(source):
        return indices
    asked = [
        it for it in (*found["births"], *found["cause"]["experiments"]) if _named(it.get("rows"), _length(it), indices)
    ]
    if not asked:
        return indices
    try:
        with row_order.Aside():
            known = row_order.positions(source, sorted({row for it in asked for row in it["rows"]}))
    except Exception:  # what the program holds cannot be put aside: then it is not asked, and not known
        known = {}
    return [indices[known[row]] if row in known else None for row in range(len(indices))]


def _named(rows, of, indices):
    """The samples of these rows, where they are rows of a batch of so many. All of them single none out, and may be
    rows of something else that has as many, such as a weight."""
    if not rows or len(rows) == of > 1 or not isinstance(indices, (list, tuple)) or of != len(indices):
        return []
    if not all(row < of and type(indices[row]) is int and indices[row] >= 0 for row in rows):
        return []
    return [indices[row] for row in rows]


def _length(birth):
    """Of what the rows of a birth or an experiment count: the batch where an experiment found them, else dimension 0 of
    what the birth made."""
    if "rows_of" in birth:
        return birth["rows_of"]
    shape = (birth.get("outputs") or [{}])[0].get("shape")
    return shape[0] if shape else None


def name(alarm: Alarm, found: Findings) -> None:
    """Into each birth of the alarm, and each of its experiments, that knows rows of the batch."""
    batches = found.get("samples") or []
    number = alarm.get("micro_batch") or 0
    if not batches or len(batches) > 1 and number >= len(batches):
        return
    indices = batches[number if len(batches) > 1 else 0]
    experiments = [e for e in alarm["cause"]["experiments"] if "rows_of" in e]
    # Of several batches it is known of the culprit only which of them it is in.
    births = alarm["births"] if len(batches) == 1 else alarm["births"][:1]
    # What the step began with is of no batch of it, also where it has as many rows.
    births = [
        b
        for b in births
        if b.get("rows_are_samples", True) and b.get("phase") != "state" or b.get("rows_in") == "batch"
    ]
    for birth in births:
        if samples := _named(birth["rows"], _length(birth), indices):
            birth["samples"] = samples
            if "rows_in" in birth:
                birth["rows_in"] = "batch"
    for experiment in experiments:
        if samples := _named(experiment.get("rows"), experiment["rows_of"], indices):
            experiment["samples"] = samples
