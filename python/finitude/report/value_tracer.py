"""At which line of the user's code a value stops being finite, where no operator of torch shows it: numpy, plain
Python, a library.

A function is called under `sys.settrace`, which is set for this one call and only while a bad step is explained; a
debugger or a coverage measurement that has it is left alone (`is_free`). After each line the names of its frame are
looked at. A value that is bad and becomes good again, such as a NaN that is filled in, takes what was noted of it
along; what is left when the call is over, the first of it, is where the bad value in the result came from."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
import types

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..base import sources
from ..base._places import is_library
from ..base.kinds import is_a
from ..base.sources import NUMERIC
from .bad_values import MAX_VALUES, Look, as_array, parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set
    from types import FrameType
    from typing import Any

MAX_EVENTS = 200_000
COMPREHENSIONS = frozenset(
    {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
)  # in versions of Python where they are functions


def is_free() -> bool:
    return sys.gettrace() is None


@dataclasses.dataclass
class Place:
    """Where it was: the statement, and what its sources held. how: "stored" (one of them was bad already), "made" (they
    were finite), "read" (nothing in sight of the line holds numbers: it came out of a call)."""

    file: str
    line: int
    function: str
    source: str
    how: str
    held_in: str = ""  # stored: the expression that holds it
    value: object = None  # of that expression
    of_inf: bool = False  # made: NaN, of something infinite
    written_so: bool = False  # made: the line itself holds NaN or Inf, as float("inf") or np.nan


@dataclasses.dataclass
class _Frame:
    number: int  # of the frame; its address serves others after it
    entered: int  # number of the event
    line: int
    began: int  # number of the event at which that line began
    given: dict  # ids of its arguments
    bad: set  # names
    infinite: set  # names of what is not finite and, where NaN is looked for, not NaN
    inside: list = dataclasses.field(default_factory=list)  # noted while its line still runs


@dataclasses.dataclass
class _Noted:
    frame: int
    name: str
    began: int  # what was noted from there on happened inside the line
    number: int
    place: Place


class _Operators(TorchDispatchMode):
    """What torch computes meanwhile: (number of the event, operator) of those whose result is bad and whose operands
    are not."""

    def __init__(self, trace):
        super().__init__()
        self.trace = trace

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = self.trace.look.is_bad([*args, *(kwargs or {}).values()])  # before: it may write into them
        result = func(*args, **(kwargs or {}))
        if not given and self.trace.look.is_bad(result):
            self.trace.operators.append((self.trace.events, func._schema.name))
        return result


class Trace:
    """One call under a trace of lines: result, or error; `place` where the bad value was made, or None."""

    def __init__(self, look: Look, call: Callable[[], Any]):
        self.operators = []
        self.look, self.events, self.noted, self.frames, self.count = look, 0, [], {}, 0
        self.wide = Look(False)
        self.result = self.error = None
        self.complete, self.importing = True, False
        sys.settrace(self._called)
        try:
            with _Operators(self):
                self.result = call()
        except Exception as e:
            self.error = e
        finally:
            sys.settrace(None)
            self.frames.clear()

    @property
    def place(self) -> Any:
        return self.noted[0].place if self.noted and self.complete else None

    @property
    def operator(self) -> str:
        """The operator of torch that made it in the line of `place`, or ""."""
        return self._operator_of(self.noted[0]) if self.place is not None else ""

    def _operator_of(self, noted):
        return next((name for number, name in self.operators if noted.began <= number <= noted.number), "")

    def only_maker(self) -> tuple[Any, str] | None:
        """(place, operator) of the one line that made any of it; None where there are others, it came in, or the
        program writes it so."""
        made = [
            n
            for n in self.noted
            if n.place.how == "made" and not any(n.began <= m.number < n.number for m in self.noted)
        ]
        made = made if self.complete else []
        lines = {(n.place.file, n.place.line) for n in made}
        return (made[0].place, self._operator_of(made[0])) if len(lines) == 1 and not made[0].place.written_so else None

    def _bad_names(self, frame):
        return {name for name, value in _names(frame).items() if self.look.is_bad(value)}

    def _infinite_names(self, frame):
        return (
            {name for name, value in _names(frame).items() if self.wide.is_bad(value)} if self.look.only_nan else set()
        )

    def _called(self, frame, event, arg):
        if not _is_looked_into(frame) or not self.complete or self.importing:
            return None
        if frame.f_code.co_name == "<module>":  # workers had imported it, this process had not
            self.importing, frame.f_trace_lines = True, False
            return self._imported
        caller = frame.f_back
        if caller is not None and (begun := self.frames.get(id(caller))) is not None:
            self._names_after(
                caller, begun, inside=True
            )  # a loop in brackets binds its name in the line that it calls in
        self.count += 1
        given = {name: id(value) for name, value in _names(frame).items()}
        self.frames[id(frame)] = _Frame(
            self.count,
            self.events,
            frame.f_lineno,
            self.events,
            given,
            self._bad_names(frame),
            self._infinite_names(frame),
        )
        return self._event

    def _imported(self, frame, event, arg):
        self.importing = self.importing and event != "return"
        return self._imported

    def _event(self, frame, event, arg):
        self.events += 1
        if self.events > MAX_EVENTS or self.look.effort > MAX_VALUES:
            self.complete = False
            sys.settrace(None)
            return None
        state = self.frames.get(id(frame))
        if state is not None and event in ("line", "return"):
            self._names_after(frame, state)
            if event == "return":
                self._returned(frame, state, arg)
                self.frames.pop(id(frame), None)
            else:
                self.events += 1  # what was noted just now is of the line before
                state.line, state.began, state.infinite = frame.f_lineno, self.events, self._infinite_names(frame)
        return self._event

    def _names_after(self, frame, state, inside=False):
        """inside: the line is not done yet, and what it makes is all of what it noted."""
        for one in state.inside:
            one.number = self.events
        now = self._bad_names(frame)
        new = [self._note(frame, name, state) for name in sorted(now - state.bad)]
        state.inside = [*state.inside, *new] if inside else []
        if not _in_brackets(frame):  # there the next value is no repair of the last: what became of all of them decides
            good = [n for n in self.noted if n.frame == state.number and n.name in state.bad - now]
            for one in [n for n in good if not self._is_handed_on(n, now)]:
                self.noted = [n for n in self.noted if not one.began <= n.number <= one.number]
        state.bad = now

    def _is_handed_on(self, one, bad):
        """Did another name of that frame, which is bad still, get it from this one? A loop that fills a list binds its
        name again."""
        return any(
            n.frame == one.frame
            and n.number > one.number
            and n.name in bad
            and n.place.how == "stored"
            and re.split(r"\W", n.place.held_in, maxsplit=1)[0] == one.name
            for n in self.noted
        )

    def _returned(self, frame, state, value):
        if self.look.is_bad(value):
            if not any(n.number >= state.entered for n in self.noted):
                self._note(frame, "", state)
            return
        names = _names(frame)  # what it wrote into an argument is bad all the same
        written = {name for name in state.bad if state.given.get(name) == id(names[name])}
        mine = [n for n in self.noted if n.frame == state.number and n.name in written]
        self.noted = [
            n for n in self.noted if n.number < state.entered or any(m.began <= n.number <= m.number for m in mine)
        ]

    def _note(self, frame: FrameType, name: str, state: Any) -> _Noted:
        # What was made in a function that this line called is noted there, before this one. A comprehension is one
        # line.
        began = state.entered if _in_brackets(frame) else state.began
        self.noted.append(
            _Noted(
                state.number,
                name,
                began,
                self.events,
                place_of(frame, state.line, state.bad, state.infinite, self.look),
            )
        )
        return self.noted[-1]


def _in_brackets(frame):
    return frame.f_code.co_name in COMPREHENSIONS


def _is_looked_into(frame):
    file = frame.f_code.co_filename
    return not is_library(file) and frame.f_globals.get("__name__", "").partition(".")[0] not in NUMERIC


def _names(frame):
    """Its own names; what it takes from functions around it was there before."""
    around = set(frame.f_code.co_freevars)
    return {k: v for k, v in frame.f_locals.items() if k not in around and k != "self"}


@functools.lru_cache(maxsize=16)
def _tree(text):
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def statements_on(file: str, line: int) -> list[ast.stmt]:
    """Those that have no other line."""
    tree = _tree("".join(sources.lines(file)))
    nodes = ast.walk(tree) if tree is not None else ()
    return [n for n in nodes if isinstance(n, ast.stmt) and n.lineno == n.end_lineno == line]


def statement_at(file: str, line: int) -> Any:
    """The innermost statement of that line (ast), or None."""
    tree = _tree("".join(sources.lines(file)))
    if tree is None:
        return None
    found = [
        n
        for n in ast.walk(tree)
        if isinstance(n, (ast.stmt, ast.Lambda)) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    found.reverse()  # of those on one line, the innermost
    return min(found, key=lambda n: ((n.end_lineno or n.lineno) - n.lineno, isinstance(n, ast.stmt)), default=None)


_UNKNOWN = object()
_PLAIN = (list, tuple, dict, torch.Tensor)  # an element of which may be taken


def _value(node, frame, plain=_PLAIN):
    """The value of a plain expression, without running any code of the program's own; _UNKNOWN where that is not known.
    plain: what an element may be taken of."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        while node.id not in frame.f_locals and _in_brackets(frame) and frame.f_back is not None:
            frame = frame.f_back  # what it loops over is taken at its position
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id, _UNKNOWN))
    if isinstance(node, (ast.Tuple, ast.List)):
        items = [_value(n, frame, plain) for n in node.elts]
        return _UNKNOWN if any(i is _UNKNOWN for i in items) else tuple(items)
    if isinstance(node, ast.Slice):
        ends = [None if n is None else _value(n, frame, plain) for n in (node.lower, node.upper, node.step)]
        return _UNKNOWN if any(e is _UNKNOWN for e in ends) else slice(*ends)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.FloorDiv)):
        left, right = _value(node.left, frame, plain), _value(node.right, frame, plain)
        if type(left) is not int or type(right) is not int or right == 0:
            return _UNKNOWN
        return {
            ast.Add: left + right,
            ast.Sub: left - right,
            ast.Mult: left * right,
            ast.Mod: left % right,
            ast.FloorDiv: left // right,
        }[type(node.op)]
    if isinstance(node, ast.Attribute):
        base = _value(node.value, frame, plain)
        if base is _UNKNOWN:
            return _UNKNOWN
        if type(base).__module__.partition(".")[0] == "pandas" and node.attr in ("iloc", "loc", "values"):
            return getattr(base, node.attr)
        own = getattr(base, "__dict__", None)
        return own.get(node.attr, _UNKNOWN) if isinstance(own, dict) else _UNKNOWN
    if isinstance(node, ast.Subscript):
        base, at = _value(node.value, frame, plain), _value(node.slice, frame, plain)
        is_plain = type(base) in plain or type(base).__module__.partition(".")[0] in (
            "numpy",
            "pandas",
        )
        try:
            return base[at] if is_plain and at is not _UNKNOWN else _UNKNOWN
        except Exception:
            return _UNKNOWN
    return _UNKNOWN


def _holds_numbers(value):
    if is_a(value, (float, torch.Tensor)) or as_array(value) is not None:
        return True
    return any(is_a(v, (float, torch.Tensor)) or as_array(v) is not None for _, v in parts(value))


def _is_bad_text(value, look):
    """A number as text, as a table holds it that was read without a type."""
    try:
        return is_a(value, str) and look.is_bad(float(value))
    except ValueError:
        return False


def _sources(node, frame, plain):
    """(expression, value) of what the statement reads, the largest expressions that are known."""
    value = _value(node, frame, plain) if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) else _UNKNOWN
    if value is not _UNKNOWN:
        yield node, value
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield from _sources(child, frame, plain)


def _function(code):
    """Its name; that of the function around it for a comprehension, which is one of its own in older versions of
    Python."""
    name = getattr(code, "co_qualname", code.co_name)
    while name.rpartition(".")[2] in COMPREHENSIONS and "." in name:
        name = name.rpartition(".")[0].removesuffix(".<locals>")
    return name


def place_of(
    frame: FrameType,
    line: int,
    bad_before: Set[str],
    infinite: Set[str],
    look: Look,
    plain: tuple[type, ...] = _PLAIN,
) -> Place:
    """The statement at that line, which has run. bad_before: names of the frame that were bad as it began; infinite:
    those of what is not finite, where NaN is looked for; plain: types of what an element may be taken of."""
    file, function = frame.f_code.co_filename, _function(frame.f_code)
    place = Place(file, line, function, sources.line(file, line)[:400], "made")
    statement = statement_at(file, line)
    if statement is None:
        return place
    numbers = written_so = False
    of_inf = any(isinstance(n, ast.Name) and n.id in infinite for n in ast.walk(statement))
    written = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    read = [
        n for field in ("value", "iter", "test", "body") if isinstance(n := getattr(statement, field, None), ast.expr)
    ]
    for node, value in [found for n in read for found in _sources(n, frame, plain)]:
        root = node
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if isinstance(_value(root, frame), types.ModuleType) and isinstance(value, float):  # np.nan, a mark
            numbers, written_so = True, written_so or look.is_bad(value)
            continue
        if callable(value) or isinstance(root, ast.Name) and root.id in written - bad_before:
            numbers |= _holds_numbers(value)  # what it is now is what came of the line
            continue
        came_of_it = isinstance(root, ast.Name) and root.id in _names(frame) and root.id not in bad_before
        if _is_bad_text(value, look) or look.is_bad(value) and not came_of_it:
            return dataclasses.replace(place, how="stored", held_in=ast.unparse(node), value=value)
        numbers |= _holds_numbers(value)
        of_inf |= look.only_nan and Look(False).is_bad(value)
    written_so |= any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) and _is_bad_text(n.value, look)
        for n in ast.walk(statement)
    )
    computes = written_so or any(isinstance(n, (ast.BinOp, ast.AugAssign)) for n in ast.walk(statement))
    return dataclasses.replace(
        place, how="made" if numbers or computes else "read", of_inf=of_inf, written_so=written_so
    )


class Untraced:
    """The same where lines cannot be traced: what came of the call alone."""

    place, operator, complete, count, events = None, "", False, 0, 0

    def __init__(self, call: Callable[[], Any]):
        self.result = self.error = None
        try:
            self.result = call()
        except Exception as e:
            self.error = e


def run_at(file: str, line: int) -> Sequence[ast.AST]:
    """The statements that run at a line; of a compound one, the parts of its head."""
    statement = statement_at(file, line)
    if statement is None or statement.lineno == statement.end_lineno:
        return statements_on(file, line)  # there may be several on one line
    return [n for n in ast.iter_child_nodes(statement) if not isinstance(n, (ast.stmt, ast.excepthandler))]
