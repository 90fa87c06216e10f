"""What was not watched, as far as that is known only when the program ends."""

from __future__ import annotations

from .. import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..base.types import Allowance
    from .document import Report


def at_end(report: Report, allowances: Iterable[Allowance]) -> None:
    if wanted := _native.undo_shortfall():
        report.add_not_watched(
            f"steps that could be undone: copies take {-(-wanted >> 20)} MB, --undo-mb gives {report.config.undo_mb}"
        )
    if name := _native.unread_class():
        report.add_not_watched(
            f"gradients of the class {name}, which has no memory of its own and does not name the "
            "tensor that holds its values"
        )
    for allowance in allowances:
        if not allowance.used:
            report.add_not_watched(f"unused allowance {allowance.describe()}")
