"""Accelerate: `with watch(accelerator): ...` around the loop, or `handle = watch(accelerator)` and `handle.close()`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Unpack, Watch, WatchOptions


def watch(accelerator: Any, **options: Unpack[WatchOptions]) -> Watch:
    """Watches every model and optimizer that the accelerator has prepared, and those it prepares later.

    options: on_alarm, level, report, runs, undo_mb, max_skips, as on the command line of `finitude run`. Returns what
    finitude.watch returns. Call it on the main process and the others alike; each process watches itself.
    """
    from .. import api

    if not hasattr(accelerator, "prepare"):
        raise TypeError(f"watch wants an accelerate.Accelerator, not {type(accelerator).__name__}")
    optimizers = [getattr(o, "optimizer", o) for o in accelerator._optimizers]
    model = accelerator._models[0] if accelerator._models else None
    return api.watch(model, optimizers, **options)
