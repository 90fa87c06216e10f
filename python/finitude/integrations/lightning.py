"""Lightning: `Trainer(callbacks=[Finitude()])` watches that trainer's fit. Works with lightning and
pytorch-lightning."""

from __future__ import annotations

import functools
import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Unpack, WatchOptions


def _callback_class():
    """The Callback of the package that the program uses: both may be installed, and are not the same."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda n: n not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ImportError as e:
            missing = e
    raise ImportError("finitude.integrations.lightning needs the package lightning or pytorch-lightning") from missing


@functools.cache
def _make():
    from ._handle import Handle

    class Finitude(_callback_class()):  # type: ignore[misc]  # known as it runs
        """Stops the step that went NaN or Inf, runs its training_step again and reports where the value was born.

        options: on_alarm, level, report, runs, undo_mb, max_skips, as on the command line of `finitude run`. Its state
        is not part of a checkpoint."""

        def __init__(self, **options: Unpack[WatchOptions]):
            super().__init__()
            self._handle = Handle(options)

        @property
        def alarms(self):
            return self._handle.alarms

        def setup(self, trainer, pl_module, stage):
            if stage == "fit":
                self._handle.open(pl_module)

        def on_fit_start(self, trainer, pl_module):
            self._handle.open(pl_module, [getattr(o, "optimizer", o) for o in trainer.optimizers])

        def on_exception(self, trainer, pl_module, exception):
            self._handle.close(exception)

        def teardown(self, trainer, pl_module, stage):
            if stage == "fit":
                self._handle.close()

    Finitude.__module__, Finitude.__qualname__ = __name__, "Finitude"
    return Finitude


def __getattr__(name):
    if name == "Finitude":
        return _make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
