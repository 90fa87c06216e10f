"""What `finitude.explain` says of a tensor: where its bad values were born, as text and for a notebook."""

from __future__ import annotations

import html
import os

from . import value_range

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Birth, Cause, Findings, Fix


class Explanation:
    """`print` shows it, a notebook too. births, cause and fix are as in an alarm of docs/report.schema.json; without
    births and seen every value of the tensor is finite, or the step is run again and what is asked is the alarm."""

    def __init__(self, holds: str, found: Findings, seen: Sequence[Birth] = (), notes: Sequence[str] = ()):
        """holds: how many values of it are bad, in words. seen: where bad values are first seen, which may have been
        born before. notes: what else is to be said."""
        self._holds, self._notes, self.seen = holds, notes, list(seen)
        self.births: list[Birth] = found.get("births", [])
        self.cause: Cause | None = found.get("cause") if self.births else None
        self.fix: Fix | None = found.get("fix") if self.births else None

    def __bool__(self) -> bool:
        """Is there anything to explain?"""
        return bool(self.births or self.seen)

    def __str__(self) -> str:
        if not self:
            return f"{self._holds}: not explained here" if self._holds else "every value is finite"
        what = "born here" if self.births else "first seen here"
        lines = [f"{self._holds} of it {'was' if self._holds.startswith('1 ') else 'were'} {what}:"]
        for birth in self.births:
            lines += _born("born", birth)
        for birth in self.seen:
            lines += _born("first seen", birth)
        if self.cause is not None:
            lines.append(f"cause     {self.cause['text']} ({self.cause['class']}) [{self.cause['confidence']}]")
        if self.fix is not None:
            lines.append(f"fix       {self.fix['text']}")
        lines += [f"note      {note}" for note in self._notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _born(how, birth):
    place = f"{os.path.basename(birth['file'])}:{birth['line']}" if birth["file"] else ""
    module = f"in {birth['module']}" if birth["module"] else ""
    words = (f"{how} in {birth['phase']}", birth["op"] or birth.get("name"), place, birth["source"], module)
    lines = ["   ".join(filter(None, words))]
    if (forward := birth.get("forward")) is not None:
        lines.append(f"  derivative of   {forward['op']}   {os.path.basename(forward['file'])}:{forward['line']}")
    for side, many in (("input", birth["inputs"]), ("output", birth["outputs"])):
        lines += [_values(side, one) for one in many]
    return lines


def _values(side, one):
    shape = ",".join(map(str, one["shape"]))
    kind = f"{one['arg']} [{shape}] {'integer' if one['dtype'] == 'other' else one['dtype']}".lstrip()
    return "   ".join((f"  {side:<8}{kind}", *value_range.words(one), *(f"{one[k]} x {w}" for k, w in _BAD if one[k])))


_BAD = ("nan", "NaN"), ("pos_inf", "Inf"), ("neg_inf", "-Inf")
