"""Which samples of the data set the guilty rows of a batch are, where the sampler told."""

from . import begun


def told(found):
    """The findings with the indices of the step's batches, one list for each that it used, in order."""
    batches = begun.take_samples()
    if any(batches) and found.get("births"):
        found["samples"] = batches
    return found


def _rows(shape, rows, indices):
    """The samples of these rows, where dimension 0 of the tensor is that of the batch."""
    if not shape or not isinstance(indices, (list, tuple)) or shape[0] != len(indices):
        return []
    if not all(type(indices[row]) is int and indices[row] >= 0 for row in rows if row < len(indices)):
        return []
    return [indices[row] for row in rows] if all(row < len(indices) for row in rows) else []


def name(alarm, found):
    """Into each birth of the alarm that knows its rows."""
    batches = found.get("samples") or []
    number = alarm.get("micro_batch") or 0
    if not batches or len(batches) > 1 and number >= len(batches):
        return
    indices = batches[number if len(batches) > 1 else 0]
    for birth in alarm["births"]:
        outputs, rows = birth.get("outputs") or [], birth.get("rows") or []
        if outputs and outputs[0] and rows and (samples := _rows(outputs[0].get("shape"), rows, indices)):
            birth["samples"] = samples
