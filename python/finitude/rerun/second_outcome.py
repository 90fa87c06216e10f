"""What a second process has shown of a step: the verdict and the sentence of the report."""

from __future__ import annotations

from typing import NamedTuple

from ..base import compat
from ..report.incident import compared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from ..base.types import Order

    Verdict = Literal["persistent", "transient", "order-dependent"]


MEMORY_DIFFERS = "memory that nobody wrote holds something else in each run"


class Outcome(NamedTuple):
    verdict: Verdict
    text: str
    same_bits: bool = False  # of loss and gradients, in both runs


def _way(order):
    where = "on all ranks" if order.get("ranks") else "in a second process"
    eagerly = ", this step eagerly" if order["compiled"] else ""
    guarded = ", with guard zones around the memory of its tensors" if order.get("guard") else ""
    return f"run again from {order.get('resumed') or 'its start'} {where}{eagerly}{guarded}"


def of_given_away(order: Order, is_bad: bool, is_finite: bool) -> Outcome:
    """Of a rank of which nothing was to be explained, while another one received a value that was not finite.
    is_finite: its own loss and gradients."""
    gave = "it gave other ranks values that are not finite" if is_bad else "it gave other ranks finite values only"
    what = f"what this rank holds is finite, and {gave}" if is_finite else "what this rank holds is not finite"
    return Outcome("persistent" if is_bad else "transient", f"{_way(order)}; {what}")


def of_other_memory(order: Order) -> Outcome:
    """Of a first step that began with memory that nobody had written."""
    return Outcome("transient", f"the program was {_way(order)} up to its first step, with other bytes in fresh memory")


def of(
    order: Order,
    same_bits: bool,
    failed_again: bool,
    elsewhere: bool = False,
    written_at: int | None = None,
    other: Sequence[str] = (),
    by_memory: bool = False,
) -> Outcome:
    """failed_again: something came out that is not finite. elsewhere: that is the loss, where it was a gradient, or the
    other way round. written_at: the step that wrote it, of state. other: names of other data than in the first run.
    by_memory: what made it fail elsewhere is memory that nobody wrote."""
    way = _way(order)
    if written_at is not None:
        return Outcome(
            "persistent", f"the program was {way}; step {written_at} of the optimizer wrote it again", same_bits
        )
    if same_bits and other:
        return Outcome("persistent", f"{way}; it failed again, on other data ({', '.join(other[:3])})")
    if same_bits and "late" in order["expected"]:
        same = "loss came out with the same bits, gradients with as many values that are not finite"
        return Outcome("persistent", f"the program was {way}; {same}")
    if same_bits:
        what = compared(order["expected"])
        kind = order.get("alarm", {}).get("sink", {}).get("kind")
        if what == "the gradients" and kind == "loss":  # which came to no backward
            what = "the gradients of the step before and random numbers, which is all that could be compared,"
        return Outcome("persistent", f"the program was {way}; {what} came out with the same bits", True)
    if elsewhere:
        now = "a gradient" if order["alarm"]["sink"]["kind"] == "loss" else "the loss"
        text = f"{way}; it failed again, but at {now}: another value than the first time"
        if by_memory:
            text += f", as {MEMORY_DIFFERS}"
        return Outcome("order-dependent", text)
    if failed_again:
        verdict: Verdict = "persistent" if order["compiled"] else "order-dependent"
        return Outcome(verdict, f"{way}; it failed again, with other bits")
    if order["compiled"]:
        return Outcome("order-dependent", f"{way}; the step came out finite: {compat.ONLY_COMPILED}")
    return Outcome("transient", f"{way}; the step came out finite")
