"""What the frames that an exception left behind hold that is not finite, and whether the exception is about
that.

The program is over, so what this costs does not matter. A value counts as refused where a check of the
program's own that asks for it raised, or where the exception speaks of such values and the statement that
led to it reads one. Anything else merely lies around, as masks and padding do.
"""

from __future__ import annotations

import inspect
import re
import sys

import torch

from .. import _native
from ..base import sources
from ..base.kinds import is_a
from ..errors import NonFiniteError
from . import optimizer_members, statements
from .tensor_stats import count_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..base.types import Tensor

MOST_VALUES, MOST_BYTES = 4096, 8 << 30
MOST_PARTS = 64
_MOST_LINKS = 16  # of a chain of exceptions
# A cast of NaN to an integer gives its smallest number.
_OF_VALUES = re.compile(
    r"\bnans?\b|\b[+-]?infs?\b|infinit|(?<!de)finite\b|isnan|not[ -]a[ -]number|-9223372036854775808|"
    r"-2147483648|numeric entries",
    re.IGNORECASE,
)
_MAY_BE_OF_VALUES = re.compile(
    r"invalid (value|entr|prob)|singular|did not converge|positive[- ]definite|ill-conditioned|domain error|"
    r"between 0 and 1|[<>]=? ?[01]\b|"
    r"must be (positive|non-?negative)|probabilit",
    re.IGNORECASE,
)
_OF_SHAPES = re.compile(
    r"shape|dimension|\bdims?\b|size|length|broadcast|axis|axes|dtype|type|index|column|key", re.IGNORECASE
)
_NEVER_OF_VALUES = (
    OSError,
    ImportError,
    NameError,
    AttributeError,
    SyntaxError,
    MemoryError,
)  # whose words may be any name
_OF_NUMBERS = (ValueError, ArithmeticError, RuntimeError)
_NAMED_SO = ("LinAlgError", "_LinAlgError")


class Seen:
    """A value that is not finite: its name, where it is named, what it holds in words. operand: it is part
    of the statement that led to the exception. is_handed_on: only a frame of NumPy or the like names it; its place is
    the line of the program that called that."""

    def __init__(self, name: str, value: Any, words: str, file: str, line: int, operand: bool):
        self.name, self.value, self.words, self.file, self.line, self.operand = (
            name,
            value,
            words,
            file,
            line,
            operand,
        )
        self.is_handed_on = False

    @property
    def is_tensor(self) -> bool:
        return is_a(self.value, torch.Tensor)

    def made_at(self) -> int:
        """The line that set its name last, in the same function; 0: not known."""
        if self.is_handed_on:
            return 0
        name = re.match(r"\w+", self.name)
        return statements.assignment(statements.at(self.file, self.line), name[0])[1] if name else 0


class Raised:
    """What is known of an exception. refused: the values that it is about, the nearest first; handed:
    those that were given to what raised it and did not say why; around: others. asks: it is about such
    values by its words or by the check that raised it, whether or not a name is left for one."""

    def __init__(self):
        self.refused, self.handed, self.around, self.asks = [], [], [], False


def look(error: BaseException | None, is_known: Callable[[Tensor], bool] = lambda tensor: False) -> Raised:
    """What the frames of that exception hold."""
    raised, links = Raised(), chain(error)
    speaks = any(_speaks(e, _OF_VALUES) for e in links)
    may_speak = speaks or any(_speaks(e, _MAY_BE_OF_VALUES) for e in links)
    raised.asks = speaks
    left = _Budget(is_known)
    for link in links:
        innermost = True
        at = list(frames(link))
        for i, (frame, line) in enumerate(at):
            statement = statements.at(frame.f_code.co_filename, line)
            checks = innermost and statement.is_check
            raised.asks = raised.asks or checks and statement.asks
            about = checks or may_speak
            operands = _operands(frame, line, statement, checks, left)
            named = _named(frame, line, left)
            if sources.is_numeric(frame.f_code.co_filename):
                _place_in_program(operands + named, at[i:], left)
            handed = innermost and not statement.is_check and _is_of_arguments(link)
            (raised.refused if about else raised.handed if handed else raised.around).extend(operands)
            raised.around.extend(named)
            innermost = False
    if speaks and not raised.refused:  # of what the innermost frames name, though the statement reads it under no name
        raised.refused = [seen for seen in raised.around if seen.is_tensor and _native.has_graph(seen.value)]
    # What NumPy's own frames name may have a name of the script's, too, which its reader knows.
    raised.refused.sort(key=lambda seen: seen.is_handed_on)
    earlier = []
    for some in (raised.refused, raised.handed, raised.around):
        some[:] = [
            seen
            for i, seen in enumerate(some)
            if not any(
                seen.value is other.value
                or seen.is_handed_on
                and other.is_handed_on
                and (seen.name, seen.line) == (other.name, other.line)
                for other in earlier + some[:i]
            )
        ]
        earlier += some
    return raised


def is_about_values(error: BaseException) -> bool:
    raised = look(error)
    return raised.asks or bool(raised.refused or raised.handed)


def chain(error: BaseException | None) -> list[BaseException]:
    """The exception and those that it was raised from or while they were handled, up to one of finitude, which
    is about a step that was reported."""
    found = []
    while (
        error is not None
        and len(found) < _MOST_LINKS
        and not is_a(error, NonFiniteError)
        and not any(error is e for e in found)
    ):
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def frames(error: BaseException) -> Iterator[tuple[Any, int]]:
    """(frame, line) of the frames that are not torch's, the standard library's or ours, the innermost
    first."""
    found, traceback = [], error.__traceback__
    while traceback is not None:
        if not optimizer_members.is_library(traceback.tb_frame.f_code.co_filename):
            found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return reversed(found)


def _place_in_program(found, at, budget):
    """Names of these values, of the first of these frames, become what the program calls there, and its line."""
    outer = [(frame.f_code.co_filename, line) for frame, line in at[1:]]
    places = [p for p in outer if not sources.is_of_package(p[0])] or [p for p in outer if not sources.is_numeric(p[0])]
    if not places or not found:
        return
    file, line = places[0]
    inside = [frame for frame, _ in at[: 1 + outer.index((file, line))]]
    functions = [frame.f_code.co_name for frame in inside]
    call = statements.called(file, line, functions) or functions[-1]
    code, names = inside[-1].f_code, optimizer_members.names_of(inside[-1])
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    arguments = [part for name in code.co_varnames[:count] for _, part in _parts(names.get(name))]
    what = "an argument of" if any(map(budget.words, arguments)) else "a value in"
    for seen in found:
        seen.name, seen.file, seen.line, seen.is_handed_on = f"{what} {call}", file, line, True


def _is_of_arguments(error):
    """May it be about the values of what it was given?"""
    try:
        return is_a(error, (ValueError, ArithmeticError)) and not _OF_SHAPES.search(str(error))
    except Exception:
        return False


def _speaks(error, words):
    if is_a(error, FloatingPointError) or words is _MAY_BE_OF_VALUES and type(error).__name__ in _NAMED_SO:
        return True
    if is_a(error, _NEVER_OF_VALUES) or words is _MAY_BE_OF_VALUES and not is_a(error, _OF_NUMBERS):
        return False
    try:
        return words.search(str(error)) is not None
    except Exception:  # a text of the program's own making
        return False


class _Budget:
    """How much is looked at, each value once."""

    def __init__(self, is_known):
        self.is_known, self.values, self.bytes, self.seen = is_known, MOST_VALUES, MOST_BYTES, {}

    def words(self, value: Any) -> str:
        """What a value holds that is not finite, in words; "": nothing, or it is not known."""
        if id(value) not in self.seen:
            self.values -= 1
            self.seen[id(value)] = value, self._look(value) if self.values >= 0 else ""
        return self.seen[id(value)][1]

    def _look(self, value: Any) -> str:
        try:
            if type(value) is float:
                return "NaN" if value != value else ""
            if type(value) in (torch.Tensor, torch.nn.Parameter):
                if (
                    value.is_meta
                    or value.nbytes > self.bytes
                    or _native.is_finite(value.detach())
                    or self.is_known(value)
                ):
                    return ""
                self.bytes -= value.nbytes
                is_mask = not _native.has_graph(value) and _is_mask(_native.statistics(value.detach()))
                return "" if is_mask else count_text(value.detach())
            return self._look_at_array(value)
        except Exception:  # a device that gives no more answers
            return ""

    def _look_at_array(self, value):
        numpy: Any = sys.modules.get("numpy")
        kinds: Any = getattr(numpy, "ndarray", None), getattr(numpy, "floating", None)
        if None in kinds or not is_a(value, kinds) or value.dtype.kind not in "fc" or value.nbytes > self.bytes:
            return ""
        if is_a(value, kinds[1]):
            return "NaN" if value != value else ""
        self.bytes -= value.nbytes
        nan = int(numpy.isnan(value).sum())
        inf = int(numpy.isinf(value).sum())
        return " and ".join(([f"{nan} NaN"] if nan else []) + ([f"{inf} Inf"] if inf else []))


def number(value: Any) -> float | None:
    """The value of a Python number, of a number of NumPy or of a tensor without dimensions on the CPU; else None."""
    try:
        if type(value) in (int, float):
            return float(value)
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            is_one = value.dim() == 0 and value.device.type == "cpu" and not value.is_complex()
            return float(value.detach()) if is_one else None
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and is_a(value, (numpy.floating, numpy.integer)):
            return float(value)
    except Exception:  # too large for a float, or no values
        return None
    return None


def _is_mask(s):
    """-Inf of a mask: among equal numbers, or nothing else."""
    return (
        s is None or not s["nan"] and not s["pos_inf"] and (s["nan"] + s["inf"] == s["numel"] or s["min"] == s["max"])
    )


def _parts(value, depth=0):
    """(what to append to its name, the tensor, array or number) of a value and of what containers and
    plain objects hold."""
    if is_a(value, (torch.Tensor, float)) or type(value).__module__ == "numpy":
        yield "", value
        return
    if depth == 2 or is_a(value, (str, bytes, torch.nn.Module, torch.optim.Optimizer, type)):
        return
    if is_a(value, dict):
        items = [
            (f"[{key!r}]" if type(key) in (str, int) else "[...]", v) for key, v in list(dict.items(value))[:MOST_PARTS]
        ]
    elif is_a(value, (list, tuple)):
        iterate: Any = list.__iter__ if is_a(value, list) else tuple.__iter__
        items = [(f"[{i}]", v) for i, v in zip(range(MOST_PARTS), iterate(value))]
    elif optimizer_members.is_users_class(type(value)):
        try:
            held = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            return
        items = [(f".{key}", v) for key, v in list(held.items())[:MOST_PARTS]] if type(held) is dict else []
    else:
        return
    for label, inner in items:
        for rest, part in _parts(inner, depth + 1):
            yield label + rest, part


def _bad(name, value, frame, line, budget, operand):
    file = frame.f_code.co_filename
    return [
        Seen(name + label, part, words, file, line, operand)
        for label, part in _parts(value)
        if (words := budget.words(part))
    ]


def _operands(frame, line, statement, checks, budget):
    """The values that the statement reads and that are not finite; of a check, also those that its
    conditions were computed from."""
    if not statement.operands:
        return []
    names = {**frame.f_globals, **optimizer_members.names_of(frame)}
    found = []
    todo = [(node, 0) for node in statement.operands]
    while todo:
        node, depth = todo.pop(0)
        value, followed = statements.resolved(node, names)
        if followed is None:
            continue
        bad = _bad(statements.text_of(followed), value, frame, line, budget, True)
        found += [seen for seen in bad if not any(seen.value is other.value for other in found)]
        name = followed.id if type(followed).__name__ == "Name" else ""
        if checks and not bad and name and depth < 2 and not callable(value):
            inner, _ = statements.assignment(statement, name)
            todo += [(operand, depth + 1) for operand in inner]
    return found


def _named(frame, line, budget):
    """Tensors and arrays in the names of a frame. Numbers are not worth a word there, nor is -Inf, which
    means "never"."""
    found = []
    for name, value in optimizer_members.names_of(frame).items():
        if not name.startswith("__"):
            found += [
                seen
                for seen in _bad(name, value, frame, line, budget, False)
                if type(seen.value) is not float and _is_odd(seen.value)
            ]
    return found


def _is_odd(value):
    """Holds it NaN or +Inf?"""
    try:
        if is_a(value, torch.Tensor):
            s = _native.statistics(value.detach())
            return s is not None and bool(s["nan"] or s["pos_inf"])
        return bool((value != value).any()) or bool((value == float("inf")).any())
    except Exception:
        return False
