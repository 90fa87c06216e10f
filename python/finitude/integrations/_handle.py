"""The recorder behind a callback: started with the training, closed with it, however it ends (where a framework has no
hook for a training that raised, by the end of the program)."""


class Handle:
    """Options as for finitude.watch. `open` twice is `open` once; `close` writes the report and takes every hook
    out."""

    def __init__(self, options):
        self.options = options
        self.watch = None

    def open(self, model=None, optimizers=()):
        from .. import api

        if self.watch is None:
            self.watch = api.watch(model, list(optimizers), **self.options)
        else:
            for optimizer in optimizers:
                api.watch(model, optimizer)

    def close(self, error=None):
        """error: the exception that ended the training, if one did."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.__exit__(type(error) if error is not None else None, error, None)

    @property
    def alarms(self):
        """The alarms so far, as in the report JSON."""
        return self.watch.alarms if self.watch is not None else []
