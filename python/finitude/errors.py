"""The one exception that finitude raises into a training program, and one that never gets that far."""


class NonFiniteError(FloatingPointError):
    """A step went NaN or Inf and was stopped before the optimizer applied it.

    Raised out of ``optimizer.step``. ``report`` is the alarm as in the report JSON (docs/report.schema.json).
    """

    def __init__(self, message, report=None):
        super().__init__(message)
        self.report = report


class Reached(BaseException):
    """Inside a second run only: the step that it leads to has come. Never leaves finitude."""
