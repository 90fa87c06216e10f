"""What statistics of a tensor say of its range, as the engine words it (src/show/words_of_tensors.cpp)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def words(one: dict[str, Any]) -> list[str]:
    """["min -1", "max 2"] of the finite values; ["not scanned"] or ["empty"] where none was read, [] where none is
    finite: both ends are 0 in the statistics then. one: from any file."""
    count = one.get("numel")
    bad = sum(n for key in ("nan", "inf") if isinstance(n := one.get(key), int))
    if count == 0:
        shape = one.get("shape")
        return ["empty" if isinstance(shape, list) and 0 in shape else "not scanned"]
    if isinstance(count, int) and bad >= count:
        return []
    return [f"{key} {_number(one[key])}" for key in ("min", "max") if one.get(key) is not None]


def _number(value):
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)[:24]
