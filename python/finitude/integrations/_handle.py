"""The recorder behind a callback: started with the training, closed with it, however it ends (where a framework has no
hook for a training that raised, by the end of the program)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..base.types import Alarm, Module, Optimizer, Watch, WatchOptions


class Handle:
    """Options as for finitude.watch. `open` twice is `open` once; `close` writes the report and takes every hook
    out."""

    def __init__(self, options: WatchOptions):
        self.watch: Watch | None = None
        self.options = options

    def open(self, model: Module | None = None, optimizers: Iterable[Optimizer] = ()) -> None:
        from .. import api

        if self.watch is None:
            self.watch = api.watch(model, list(optimizers), **self.options)
        else:
            for optimizer in optimizers:
                api.watch(model, optimizer)

    def close(self, error: BaseException | None = None) -> None:
        """error: the exception that ended the training, if one did."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.__exit__(type(error) if error is not None else None, error, None)

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms so far, as in the report JSON."""
        return self.watch.alarms if self.watch is not None else []
