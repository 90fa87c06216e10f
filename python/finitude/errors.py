"""The one exception that finitude raises into a training program, and one that never gets that far."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base.types import Alarm

MOST_LINKS = 256  # of a chain of exceptions


class NonFiniteError(FloatingPointError):
    """A step went NaN or Inf and was stopped before the optimizer applied it.

    Raised out of ``optimizer.step``. ``report`` is the alarm as in the report JSON (docs/report.schema.json).
    """

    def __init__(self, message: str, report: "Alarm | None" = None):
        super().__init__(message)
        self.report = report


def raised_from_ours(error: "BaseException | None") -> bool:
    """Is it a NonFiniteError, or does it say of itself that it stems from one: `raise ... from`, an exception group?
    What was merely raised while one was handled (`__context__`) may be about another step."""
    seen, todo = set(), [error]
    while todo and len(seen) < MOST_LINKS:
        error = todo.pop()
        if error is None or id(error) in seen:
            continue
        if isinstance(error, NonFiniteError):
            return True
        seen.add(id(error))
        todo.append(error.__cause__)
        inner = getattr(error, "exceptions", ())
        if isinstance(inner, (tuple, list)):
            todo += [e for e in inner if isinstance(e, BaseException)]
    return False


class Reached(BaseException):
    """Inside a second run only: the step that it leads to has come. Never leaves finitude."""


class GivesWay(BaseException):
    """A handler of a signal of the program's raised while we explained a step (program/signals.py). Never leaves
    finitude."""
