"""What copies that a second run goes back to may cost, in memory and time."""

from __future__ import annotations

from .. import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Config

COPIES_MB = 128  # where no --undo-mb is given, copies for the jump take no more than this,
COPIES_SHARE = 0.01  # nor more than this of the time


def set_budgets(config: Config, explains: bool) -> None:
    """What copies to go back to may cost. explains: this process explains one step of another, and goes back
    nowhere."""
    _native.set_undo_budget(config.undo_mb << 20)
    jumps = config.on_alarm != "raise" and config.level != "trace" and not explains
    _native.set_jump_budget(
        (config.undo_mb or COPIES_MB) << 20 if jumps else 0, 0.0 if config.undo_mb else COPIES_SHARE
    )
