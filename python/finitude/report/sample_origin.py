"""Which sample of the data set a bad batch got its bad value from, in which field, and whether the data set stores it
so or a line of its own code, of a transform or of the collate function makes it so.

Asked once, when a bad step has been explained and its birth lies in the data: the sample is taken out of the data set
again, in this process also where workers made the batch, with everything it changes put back (random numbers, files,
objects). Data sets that are read from the front, and samples that are finite this time, are not reported as known."""

from __future__ import annotations

import os

import torch

from .. import _native
from ..base import working_folder
from ..base.kinds import is_a
from . import bad_values, value_tracer
from .row_order import MAX_SAMPLES, Aside, dimension, leaves, positions, taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Findings, Fix, Source

_ORDINALS = {n: end for k, end in ((1, "st"), (2, "nd"), (3, "rd")) for n in range(k, 64, 10) if n != 10 + k}
MAX_TRIES, MAX_EVENTS = 64, 20_000  # of a sample that random numbers make; lines that it may take
TAKES_IN = (
    "",
    "aten::lift_fresh",
    "aten::alias",
    "aten::detach",
    "aten::from_file",
    "aten::_to_copy",
    "aten::clone",
    "aten::stack",
)


def _is_bad(tensor):
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and not _native.is_finite(tensor)
    )


def _bad_leaf(batch, name):
    """(path, tensor) that the birth is about, None where several could be."""
    bad = [(path, t) for path, t in leaves(batch, "batch") if _is_bad(t)]
    named = [b for b in bad if b[0] == name]
    return named[0] if named else bad[0] if len(bad) == 1 else None


def _rows(tensor, count):
    """Numbers of the samples that are bad, where one dimension is that of the batch; None where that is not known."""
    dim = dimension(tensor, count)
    if dim is None:
        return None
    flat = (~torch.isfinite(tensor.detach())).movedim(dim, 0).reshape(count, -1).any(1)
    return flat.nonzero().squeeze(1).tolist()


class _Search:
    """One batch made again: the guilty sample first, then what puts the samples together."""

    def __init__(self, dataset, collate, indices, look, before):
        """before: generators as they were when the batch was made, as far as is known; None where workers made it."""
        self.dataset, self.collate, self.indices, self.look, self.before = dataset, collate, indices, look, before
        self.trace: Any = None
        self.sample, self.error = None, None
        self.infinite = None  # (place, operator) of what made something infinite that NaN came of
        self.in_collate = self.drew = False
        self.tries = 0

    def _call(self, call):
        if value_tracer.is_free():
            return value_tracer.Trace(self.look, call)
        return value_tracer.Untraced(call)

    def of_sample(self, index):
        """Did it come out bad again? What draws random numbers is taken as it was in its batch, then with others, a few
        times."""
        events = 0
        for self.tries in range(1, MAX_TRIES + 1):
            if self.tries == 1 and self.before is not None:
                self._up_to(index)
            before = _native.take_generators()
            trace = self._call(lambda: taken(self.dataset, index))
            self.error, events = trace.error, events + trace.events
            self.drew |= not _native.take_generators() == before
            if trace.error is None and self.look.is_bad(trace.result):
                self.trace, self.sample = trace, index
                self._where_infinite(index)
                return True
            if trace.error is not None or not self.drew:
                return False
            if events > MAX_EVENTS:
                break
        return False

    def _where_infinite(self, index):
        """NaN that was made of something infinite: looked at once more for all that is not finite."""
        place = self.trace.place
        if place is None or not place.of_inf or self.drew:
            return
        look, self.look = self.look, bad_values.Look(False)
        found = self._call(lambda: taken(self.dataset, index)).only_maker()
        self.look = look
        if found is not None and (found[0].file, found[0].line) != (place.file, place.line):
            self.infinite = found

    def _up_to(self, index):
        """The random numbers that the samples before it in the batch drew are drawn."""
        self.before.restore()
        for earlier in self.indices[: self.indices.index(index)][:MAX_SAMPLES]:
            taken(self.dataset, earlier)

    def of_batch(self):
        """Are the samples finite and the batch made of them not?"""
        if not callable(self.collate) or len(self.indices) > MAX_SAMPLES:
            return False
        samples = [taken(self.dataset, i) for i in self.indices]
        if any(self.look.is_bad(s) for s in samples):
            return False
        trace = self._call(lambda: self.collate(samples))
        self.error = trace.error
        if trace.error is not None or not self.look.is_bad(trace.result):
            return False
        self.trace, self.in_collate = trace, True
        return True


def _bad_place(value, look, path=""):
    """Where in a value it is bad, as one would write it: ['image'][3]; labels of a table's columns, at most a few of
    many."""
    array = bad_values.as_array(value)
    if is_a(value, torch.Tensor) or array is not None:
        numbers = (
            value.detach().cpu().clone().numpy()  # numpy() of its own memory would forbid to resize it
            if is_a(value, torch.Tensor) and value.dtype is not torch.bfloat16
            else array
        )
        if numbers is None or numbers.dtype.kind not in "fc" or numbers.ndim == 0:
            labels = getattr(value, "index", None)
            bad = []
            if array is not None and array.dtype.kind == "O" and labels is not None and not callable(labels):
                bad = [label for label, v in zip(labels, array) if look.is_bad(v)]
            return path + (f"[{bad[0]!r}]" if len(bad) == 1 else "")
        import numpy

        wrong = numpy.argwhere(numpy.isnan(numbers) if look.only_nan else ~numpy.isfinite(numbers))
        labels = getattr(value, "index", None)
        if len(wrong) == 1 and numbers.ndim == 1 and labels is not None and not callable(labels):
            return f"{path}[{labels[int(wrong[0][0])]!r}]"
        return path + (f"[{', '.join(map(str, wrong[0].tolist()))}]" if len(wrong) == 1 else "")
    for key, part in bad_values.parts(value):
        if look.is_bad(part):
            return _bad_place(part, look, f"{path}[{key!r}]")
    return path


def _said(search, look, indices, guilty):
    """The text and the parts of what was found, or of what was not."""
    what = "NaN" if look.only_nan else "not finite"
    who = f"sample {guilty}" if guilty is not None else "the batch"
    if search.trace is None:
        why = (
            f"raised {type(search.error).__name__}"
            if search.error is not None
            else "came out finite" + (f" {search.tries} times: it draws random numbers" if search.drew else "")
        )
        return (
            {"how": "unknown", "text": f"{who}, taken out of the data set again, {why}"} if guilty is not None else None
        )
    place = search.trace.place
    field = "" if search.in_collate else _bad_place(search.trace.result, look)
    of = f" (in {field} of what the data set gives)" if field else ""
    origin = {"field": field, "op": search.trace.operator}
    if place is not None:
        origin.update(
            file=working_folder.absolute(place.file), line=place.line, function=place.function, source=place.source
        )
        at = f"{os.path.basename(place.file)}:{place.line} in {place.function}"
    if search.in_collate:
        origin["how"] = "made" if place is not None else "unknown"
        origin["text"] = (
            f"every sample is finite as the data set gives it; {what} is made as the batch is put together"
            + (f", at {at}" if place is not None else "")
        )
    elif place is None:
        origin["how"] = "stored" if search.trace.complete and search.trace.count == 0 else "unknown"
        origin["text"] = f"{who} is {what} as the data set {'stores' if origin['how'] == 'stored' else 'gives'} it{of}"
    elif place.how == "stored":
        origin["how"], inner = "stored", "" if is_a(place.value, str) else _bad_place(place.value, look)
        origin["field"] = place.held_in + inner
        origin["text"] = f"{who} is {what} as it is stored: {place.held_in + inner}, read at {at}"
    elif place.how == "read":
        origin["how"], origin["text"] = "read", f"{who} comes out {what} of the call at {at}{of}"
    elif search.infinite is not None:
        first, origin["op"] = search.infinite
        origin.update(
            file=working_folder.absolute(first.file), line=first.line, function=first.function, source=first.source
        )
        origin["how"] = "made"
        origin["text"] = (
            f"{who} is made infinite at {os.path.basename(first.file)}:{first.line} in "
            f"{first.function}, and of that {what} "
            f"at {at}{of}"
        )
    else:
        origin["how"], origin["text"] = (
            "made",
            f"{who} is made {what} at {at}{of}; "
            + ("what that line reads holds infinite values" if place.of_inf else "what that line reads is finite"),
        )
    if search.drew:
        origin["text"] += " (it draws random numbers" + (
            f", and came out so the {search.tries}{_ORDINALS.get(search.tries, 'th')} time it was taken)"
            if search.tries > 1
            else ")"
        )
    return origin


def _look_for(birth, source):
    """(datum, path of the leaf, rows, indices, how many other samples are bad as well) or None."""
    iterator, batch, indices, before = source
    dataset, collate = getattr(iterator, "_dataset", None), getattr(iterator, "_collate_fn", None)
    found = _bad_leaf(batch, birth.get("name"))
    if (
        dataset is None
        or indices is None
        or found is None
        or is_a(dataset, torch.utils.data.IterableDataset)
        or not hasattr(type(dataset), "__getitem__")
    ):
        return None
    path, tensor = found
    single = type(indices) is int
    indices = [indices] if single else list(indices)
    rows: Any = None if single else _rows(tensor, len(indices))
    look = bad_values.Look(bool(torch.isnan(tensor.detach()).any()))
    alone = getattr(iterator, "_num_workers", 0) == 0
    search = _Search(dataset, None if single else collate, indices, look, before if alone else None)
    with Aside():
        placed = positions(source, rows) if rows and len(rows) < len(indices) else {r: r for r in rows or ()}
        known = bool(placed) and len(placed) == len(set(rows))
        asked = [indices[placed[r]] for r in rows] if known else indices[:MAX_SAMPLES]
        for index in asked[:1] if known else asked:
            if search.of_sample(index):
                break
        else:
            search.of_batch()
    guilty = (
        search.sample
        if search.sample is not None
        else asked[0]
        if known and len(rows) < len(indices) or single
        else None
    )
    origin = _said(search, look, indices, guilty)
    if origin is not None and type(guilty) is int and not search.in_collate:
        origin["sample"] = guilty
    if rows is None and search.sample is not None and not single:
        rows = [i for i, index in enumerate(indices) if index == search.sample]
        rows = rows if len(rows) == 1 and len(indices) == 1 else None  # of the others it was not asked
    others = len(set(asked)) - 1 if known and origin is not None and "sample" in origin else 0
    return origin, path, rows, indices, others


def add_to(found: Findings, sources: list[Source]) -> None:
    """Into the culprit's birth and cause, where it lies in the data."""
    birth = found["births"][0] if found.get("births") else None
    if birth is None or birth["phase"] != "data" or not sources:
        return
    number = found.get("micro_batch") or 0
    if len(sources) > 1 and number >= len(sources):
        return
    try:
        result = _look_for(birth, sources[number if len(sources) > 1 else 0])
    except Exception as e:  # of a data set that is not what it should be: the rest of the findings is kept
        birth["datum"] = {
            "how": "unknown",
            "text": f"taking it out of the data set again failed ({type(e).__name__}: {e})",
        }
        return
    if result is None or result[0] is None:
        return
    datum, path, rows, indices, others = result
    birth["datum"], op = datum, datum.pop("op", "")
    outside = birth.get("op") in TAKES_IN  # no operator made it: one took it in
    if rows and (outside or birth.get("rows_in") != "batch"):
        birth.update({"rows": rows, "rows_in": "batch", "rows_of": len(indices)})
    if not outside:
        return
    cause = found["cause"]
    birth.update({"op": "", "name": path})
    if cause["class"] == "bad-data":
        where = (
            f" at row{'s' if len(rows) > 1 else ''} "
            f"{', '.join(map(str, rows[:5]))}{f' and {len(rows) - 5} more' if len(rows) > 5 else ''}"
            if rows
            else ""
        )
        held = cause["text"] if cause["text"].startswith(path) else f"{path} is not finite{where}"
        cause["text"] = f"{held}; {datum['text']}"
    fix = found.get("fix")
    if datum["how"] in ("made", "read"):
        birth.update({"op": op, "file": datum["file"], "line": datum["line"], "source": datum["source"]})
        if fix and not fix.get("diff") and cause["class"] == "bad-data":
            fix.update({"file": datum["file"], "line": datum["line"]})
            fix["text"] = (
                "put a finite number there: a padding value of 0, a value of its own where there is no spread or no "
                "entry; a product with a mask of zeros keeps NaN"
                if datum["how"] == "made" and "sample" not in datum
                else "guard this line: a value that has no spread, no data or no entry needs one of its "
                "own, or its sample dropped"
            ) + _tried_instead(fix)
    elif (
        datum["how"] == "stored" and fix and not fix.get("diff") and "sample" in datum and cause["class"] == "bad-data"
    ):
        more = f", and what is bad in {others} other sample{'s' if others > 1 else ''}," if others else ""
        fix["text"] = (
            f"fill {datum['field'] or 'it'} of sample {datum['sample']}{more} when the data set is made, or, not tried "
            f"here, drop {'those samples' if others else 'that sample'}; masking after arithmetic is too late"
        )
        fix.update({"file": "", "line": 0})  # the line where the batch is read is not where its data is made


def _tried_instead(fix: Fix) -> str:
    """What was verified is the change that was tried, in the step; not what is advised for the data set."""
    return f" (not tried here); tried: {fix['tried']}" if fix["verified"] else ""
