"""A second run began with values that the first had left non-finite in memory that each step writes in place, as a sum
of losses is, or had bound to an attribute, as an average is: had they a part in what it found?

Followed through the operations of the trace: what is non-finite by them, and where that ends in something finite, such
as a comparison."""

from __future__ import annotations

from .. import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..base.types import Findings, Operation, Tensor

MAX_BIRTHS = 16  # so many are reported, and there may be more
_MARK = "as the first run left it: "


def name(written: Iterable[tuple[str, Tensor]]) -> None:
    """written: (name, tensor) of that memory. Before the trace is analysed."""
    for what, tensor in written:
        _native.trace_name(tensor, "state", _MARK + what)


def why(names: Sequence[str] | None) -> str | None:
    """What is said where it had a part."""
    return f"the step writes {', '.join(names[:3])}, and its first run had left it non-finite" if names else None


def part(found: Findings, ops: Sequence[Operation], most: int, in_place: bool) -> list[str]:
    """Names of the memory that may have had a part in the births `found`, among the operations `ops`; most: of so many
    operations some are missing. in_place: some of it is written so, and may be read where no operation is seen."""
    came_from = {}  # storage -> the memory that its non-finite values may come of
    settled = (
        set()
    )  # memory into which this run has written other non-finite values: it is from there on as in the first run
    suspects, places = set(), {}
    for op in ops:
        for use in op["inputs"]:
            if (text := use.get("text", "")).startswith(_MARK):
                came_from.setdefault(use["storage"], text.removeprefix(_MARK))
        read = {came_from[u["storage"]] for u in op["inputs"] if u.get("storage") in came_from and _is_bad(u)}
        if not read:
            continue
        written = [u for u in op["outputs"] if "storage" in u and not op.get("view")]
        if (
            all(came_from.get(u["storage"]) in read for u in written) and written
        ):  # the memory itself, a sum over the steps
            if any(_is_bad(u) and u.get("storage") not in came_from for u in op["inputs"]):
                settled |= read
            continue
        if op["phase"] == "backward":
            suspects |= read
        if op.get("view"):
            continue
        if not written or not all(map(_is_bad, written)):
            suspects |= read - settled
        for use in written:
            if _is_bad(use):
                came_from.setdefault(use["storage"], sorted(read)[0])
        places.setdefault((op["op"], op["file"], op["line"]), set()).update(read)
    births = found.get("births") or []
    if not ops or len(ops) >= most or len(births) >= MAX_BIRTHS:
        return sorted(set(came_from.values())) or ["what it writes in place"] * in_place
    for birth in births:
        suspects |= places.get((birth["op"], birth["file"], birth["line"]), set())
        if (text := birth.get("name") or "").startswith(_MARK):
            suspects.add(text.removeprefix(_MARK))
    return sorted(suspects)


def _is_bad(use):
    return bool(use["nan"] or use["inf"])
