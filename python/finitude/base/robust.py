"""Several things that are all to be done, whatever becomes of each."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def in_any_case(*calls: Callable[[], Any]) -> list[Any]:
    """Calls each; raises, after the last, what the first of them raised. Returns what they returned."""
    first, returned = None, []
    for call in calls:
        try:
            returned.append(call())
        except BaseException as e:
            first = first or e
            returned.append(None)
    try:
        if first is not None:
            raise first
        return returned
    finally:
        first = None  # its traceback holds this frame
