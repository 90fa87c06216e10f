"""What was not watched, as far as that is known only when the program ends."""

from __future__ import annotations

from .. import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Session


def at_end(session: Session) -> None:
    if wanted := _native.undo_shortfall():
        session.not_watched(
            f"steps that could be undone: copies take {-(-wanted >> 20)} MB, --undo-mb gives {session.config.undo_mb}"
        )
    if name := _native.unread_class():
        session.not_watched(
            f"gradients of the class {name}, which has no memory of its own and does not name the "
            "tensor that holds its values"
        )
    for allowance in session.allowed.parts:
        if not allowance.used:
            session.not_watched(f"unused allowance {allowance.describe()}")
