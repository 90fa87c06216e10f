"""Hugging Face Trainer: `Trainer(callbacks=[FinitudeCallback()])` watches its training."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Unpack, WatchOptions


@functools.cache
def _make():
    from transformers import TrainerCallback

    from ._handle import Handle

    class FinitudeCallback(TrainerCallback):
        """Stops the step that went NaN or Inf, runs its training_step again and reports where the value was born.

        options: on_alarm, level, report, runs, undo_mb, max_skips, as on the command line of `finitude run`. A Trainer
        notifies no callback that its training raised: then `close()`, or the end of the program, writes the report.
        """

        def __init__(self, **options: Unpack[WatchOptions]):
            self._handle = Handle(options)

        @property
        def alarms(self):
            return self._handle.alarms

        def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
            inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
            self._handle.open(model, [inner] if inner is not None else [])

        def on_train_end(self, args, state, control, **kwargs):
            self._handle.close()

        def close(self, error=None):
            """Writes the report and takes every hook out; error: the exception that ended the training."""
            self._handle.close(error)

    FinitudeCallback.__module__, FinitudeCallback.__qualname__ = __name__, "FinitudeCallback"
    return FinitudeCallback


def __getattr__(name):
    if name == "FinitudeCallback":
        return _make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
