"""At which line of the script a value stopped being finite that no operator of torch made: NumPy, plain Python, another
process. Of a step that runs again as a whole; value_tracer.py asks the same of one call.

`begin` sets a trace of lines before the step runs again, and `stop` takes it off. In between the names that a statement
mentions are looked at before and after it. No operator is called for that: what runs is recorded."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import math
import os
import sys

import torch

from .. import _native
from ..base import compat, sources, working_folder
from ..base.kinds import is_a
from ..base.robust import in_any_case
from ..program import ranks, signals
from . import memory_lines, object_exchange, value_tracer
from .bad_values import Look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    from ..base.types import Findings, Optimizer, Sink, Tensor

MOST_LINES, MOST_NUMBERS, MOST_NOTES = 20_000, 1 << 24, 1000
A_LOOK = 64  # costs as much as so many numbers
TAKES_IN = ("aten::lift_fresh", "aten::from_file", "aten::_to_copy", "")
A_NUMBER = ("NaN", "Inf")  # `came_from` of one that is an argument of an operation
WRITE_FINITE = (
    "write a finite number at this line; where it marks missing data, replace these elements with torch.where before "
    "any arithmetic: taken out after it, they still reach gradients"
)
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_watch: _Watch | None = None  # while a step runs again


class _Look(Look):
    """For NaN and Inf, and of tensors in those that autograd knows nothing of: for the others there is the trace."""

    def __init__(self):
        super().__init__(False)

    def _tensor(self, tensor: Tensor) -> bool:
        if type(tensor) is not torch.Tensor or _wrapped(tensor) or tensor.requires_grad:
            return False
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_inference():
            return False
        self.effort += tensor.numel()
        return not _native.is_finite(tensor)

    def is_bad(self, value: Any, depth: int = 0) -> bool:
        try:
            return self._is_bad(value, depth)
        except Exception as e:
            if signals.is_of_handler(e):
                raise
            return False

    def _is_bad(self, value: Any, depth: int) -> bool:
        self.effort += A_LOOK
        return super()._is_bad(value, depth)


@dataclasses.dataclass
class _Running:
    """A frame that is watched."""

    number: int
    line: int
    began: int  # number of the event at which that line began
    before: dict[str, int]  # name -> id of what it held that was bad, as the line began
    memory: set[int] | None = None  # of memory_lines, as the line began


@dataclasses.dataclass
class Made:
    """What a statement left bad."""

    frame: int
    name: str  # "": what a function returned
    began: int
    number: int
    place: value_tracer.Place
    exchange: object_exchange.Exchange | None = None


class _Watch:
    def __init__(self, frame: FrameType | None):
        self.look, self.events, self.complete = _Look(), 0, True
        self.made: list[Made] = []
        self.memory = memory_lines.Memory()
        # statement -> frame, event, bad names; then those that are an infinite number
        self.reads: dict[tuple[str, int], tuple[int, int, list[str], list[str]]] = {}
        self._running: dict[int, _Running] = {}  # by the address of a frame
        self._count = 0
        self._watched: list[FrameType] = []
        while frame is not None:
            if _is_of_script(frame):
                self._watch_frame(frame, is_running=True)
                self._watched.append(frame)
                frame.f_trace = self._watch_event
            frame = frame.f_back
        self._is_on = True
        sys.settrace(self._watch_call)

    def stop(self) -> None:
        if self._is_on:
            sys.settrace(None)
        self._is_on = False
        for frame in self._watched:
            frame.f_trace = None
        self._watched.clear()
        self._running.clear()

    def _watch_frame(self, frame, is_running=False):
        self._count += 1
        before = self._bad_now(frame, frame.f_lineno) if is_running else {}
        running = self._running[id(frame)] = _Running(self._count, frame.f_lineno, self.events, before)
        return running

    def _watch_call(self, frame, event, arg):
        if (
            not self.complete
            or not self._in_guard(_is_of_script, frame)
            or not self._in_guard(self._watch_frame, frame)
        ):
            return None
        return self._watch_event

    def _watch_event(self, frame, event, arg):
        if event not in ("line", "return"):
            return self._watch_event
        return self._in_guard(self._watch_line, frame, event, arg)

    def _in_guard(self, call: Callable[..., Any], *given: Any) -> Any:
        """What raises in a trace raises in the program. Only what a handler of the program's raises may."""
        try:
            return call(*given) if self.complete else None
        except Exception as e:
            if signals.is_of_handler(e):
                raise
            self.complete = False
            self.stop()
            return None

    def _watch_line(self, frame, event, arg):
        self.events += 1
        if self.events > MOST_LINES or self.look.effort > MOST_NUMBERS or len(self.made) > MOST_NOTES:
            self.complete = False
            self.stop()
            return None
        running = self._running.get(id(frame)) or self._watch_frame(frame)
        self._line_is_done(frame, running)
        if event == "return":
            if self.look.is_bad(arg):
                self._note_made(frame, running, "")
            self._running.pop(id(frame), None)
            return None
        self.events += 1
        running.line, running.began = frame.f_lineno, self.events
        running.before = self._bad_now(frame, frame.f_lineno)
        running.memory = self.memory.before(frame, frame.f_lineno)
        if running.before:
            at = (frame.f_code.co_filename, frame.f_lineno)
            infinite = {n for n in running.before if _is_infinite(frame.f_locals.get(n))}
            self.reads[at] = running.number, self.events, sorted(running.before.keys() - infinite), sorted(infinite)
        return self._watch_event

    def _line_is_done(self, frame, running):
        for name, value in self._bad_now(frame, running.line).items():
            if running.before.get(name) != value:
                self._note_made(frame, running, name)
        self.memory.after(frame, running.line, running.memory)

    def _note_made(self, frame, running, name):
        names = {n for n in running.before if not n.startswith("self.")}
        place = value_tracer.place_of(frame, running.line, names, set(), self.look, (list, tuple, dict))
        place.value = None  # of the program: not to be held
        exchange = object_exchange.at(frame, place, name, self.look) if name else None
        self.made.append(Made(running.number, name, running.began, self.events, place, exchange))

    def _bad_now(self, frame, line):
        """{name: id} of what that statement mentions and is bad. `self.x` is a name too."""
        names, attributes = _mentioned(frame.f_code.co_filename, line)
        found = {}
        for name in names & frame.f_locals.keys():
            value = frame.f_locals[name]
            if self.look.is_bad(value):
                found[name] = id(value)
        me = frame.f_locals.get("self") if attributes else None
        held = getattr(me, "__dict__", None)
        held = held if isinstance(held, dict) and not is_a(me, torch.nn.Module) else {}
        for name in attributes & held.keys():
            if self.look.is_bad(held[name]):
                found[f"self.{name}"] = id(held[name])
        return found

    def maker(self, file: str, line: int, is_nan: bool = False) -> tuple[Made, str] | None:
        """(where what that statement takes in became bad, the name that brought it), or None. is_nan: what it takes in
        is a NaN. An infinite number that it reads is no maker of that: the arithmetic is."""
        if not self.complete:
            return None
        first, last = _lines_of(file, line)
        taken = [m for m in self.made if _is_in(m.place, file, first, last)]
        if taken:
            origin = self._origin(taken[-1])
            name = taken[-1].name if origin is taken[-1] else object_exchange.root(taken[-1].place.held_in)
            return (origin, name) if origin is not None else None
        for at in range(last, first - 1, -1):  # it takes it in within an expression
            frame, event, names, infinite = self.reads.get((file, at), (0, 0, [], []))
            for name in names if is_nan else names + infinite:
                before = self._made_before(frame, name, event)
                origin = self._origin(before) if before is not None else None
                if origin is not None:
                    return origin, name
        return None

    def _origin(self, made: Made, depth: int = 0) -> Made | None:
        """Follows what was stored in a name to the statement that made it."""
        if depth > 64:
            return None
        inside = [m for m in self.made if made.began <= m.number < made.number and m.frame != made.frame]
        returned = [m for m in inside if not m.name]
        if inside and (found := self._origin((returned or inside)[-1], depth + 1)) is not None:
            return found
        if isinstance(value_tracer.statement_at(made.place.file, made.place.line), (ast.For, ast.AsyncFor)):
            return None  # an iterator gave it: what made it may not have run again
        if made.exchange is not None and made.exchange.sender == ranks.world()[0]:
            own = (self._made_before(made.frame, name, made.began) for name in made.exchange.given)
            before = max((m for m in own if m is not None), key=lambda m: m.number, default=None)
        elif made.exchange is not None or made.place.how != "stored":
            return made
        else:
            before = self._made_before(made.frame, object_exchange.root(made.place.held_in), made.began)
        return self._origin(before, depth + 1) if before is not None else None

    def _made_before(self, frame, name, event):
        earlier = [m for m in self.made if m.frame == frame and m.name == name and m.number <= event]
        return earlier[-1] if earlier else None


def _is_infinite(value):
    return isinstance(value, float) and math.isinf(value)


def _is_in(place, file, first, last):
    return place.file == file and first <= place.line <= last


@functools.lru_cache(maxsize=4096)
def _is_script(file, module):
    if value_tracer.is_library(file) or sources.is_of_package(file):
        return False
    return module.partition(".")[0] not in sources.NUMERIC


def _is_of_script(frame):
    code = frame.f_code
    if code.co_name in value_tracer.COMPREHENSIONS:
        return False  # a part of the line around it
    name = frame.f_globals.get("__name__", "")
    return _is_script(code.co_filename, name) and (code.co_name != "<module>" or name == "__main__")


@functools.lru_cache(maxsize=4096)
def _mentioned(file, line):
    """(names, attributes of self) of the statements that run at a line; of a compound one, of its head."""
    names, attributes = set(), set()
    for node in (inner for n in value_tracer.run_at(file, line) for inner in ast.walk(n)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            attributes.add(node.attr)
    return frozenset(names - {"self"}), frozenset(attributes)


def _lines_of(file: str, line: int) -> tuple[int, int]:
    statement = value_tracer.statement_at(file, line)
    return (statement.lineno, statement.end_lineno or statement.lineno) if statement is not None else (line, line)


def begin(in_place: bool = True) -> None:
    """Before a step runs again in this thread; in_place: in the frames that there are. A debugger or a coverage
    measurement is left alone."""
    global _watch
    end()
    if not value_tracer.is_free() or in_place and not compat.TRACES_REWOUND_FRAMES:
        return
    _watch = _Watch(sys._getframe())


def stop() -> None:
    """The step has run: nothing more is looked at. What was seen is kept for `end`."""
    if _watch is not None:
        in_any_case(_watch.stop)


def end() -> _Watch | None:
    """What was seen since `begin`, once. May be called at any time."""
    global _watch
    stop()
    watch, _watch = _watch, None
    return watch


def add_to(found: Findings, watch: _Watch | None, optimizer: Optimizer | None, sinks: Sequence[Sink]) -> None:
    """Into the culprit's birth and cause, where a value came in that torch did not make. optimizer, sinks: of the step
    that ran again."""
    if watch is not None:
        memory_lines.add_to(found, watch.memory, optimizer, sinks)
    birth = found["births"][0] if found.get("births") else None
    if watch is None or birth is None or not _came_in(birth, found):
        return
    known = watch.maker(birth["file"], birth["line"], found.get("came_from") == "NaN")
    if known is None:
        _add_written(found, birth)
        return
    made, name = known
    first, last = _lines_of(birth["file"], birth["line"])
    if birth["phase"] == "forward" and made.exchange is None and _is_in(made.place, birth["file"], first, last):
        return  # the operation is the better name of that line
    if made.exchange is not None:
        _add_received(found, birth, made, made.exchange)
    else:
        _add_made(found, birth, made.place, made.name, name)
    birth.update({"op": "", "file": working_folder.absolute(made.place.file), "line": made.place.line})
    birth.update({"source": made.place.source, "name": name or made.name})


def _came_in(birth, found):
    if birth["phase"] == "forward":  # a number of Python's, as an argument of an operator
        return found.get("came_from") in A_NUMBER
    return birth["phase"] == "data" and "datum" not in birth and birth["op"] in TAKES_IN


def _add_written(found, birth):
    """No name brings it: where the statement itself holds such a number, nothing came in from elsewhere."""
    cause, fix, made = found["cause"], found.get("fix"), next(iter(birth["outputs"]), None)
    if birth["phase"] != "data" or not made or found.get("came_from") != "Python":
        return
    if sources.is_of_package(birth["file"] or "") or not (made["nan"] or made["inf"]):
        return
    written = list(_numbers_of(birth["file"], birth["line"]))
    if made["nan"] and not any(map(math.isnan, written)) or made["inf"] and not any(map(math.isinf, written)):
        return
    at = f"{os.path.basename(birth['file'])}:{birth['line']}"
    cause["text"] = f"the script itself writes {'NaN' if made['nan'] else 'Inf'} at {at}, through {birth['op']}"
    if fix and not fix["verified"]:
        fix["text"] = WRITE_FINITE


def _numbers_of(file, line):
    """NaN and Inf that the statement of that line holds as text: float("inf"), math.nan, torch.inf."""
    statement = value_tracer.statement_at(file, line)
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            word = node.value
        elif isinstance(node, ast.Attribute) and node.attr in ("nan", "inf"):
            word = node.attr
        else:
            continue
        with contextlib.suppress(ValueError):
            yield float(word)


def _add_received(found, birth, made, exchange):
    who = f"rank {exchange.sender}" if exchange.sender is not None else "another rank"
    at = f"{os.path.basename(made.place.file)}:{made.place.line}"
    for experiment in found["cause"]["experiments"]:
        experiment.pop("confirms", None)  # of another cause
    found["cause"] = {
        **found["cause"],
        "class": "other-rank",
        "confidence": "likely" if exchange.sender is not None else "possible",
        "text": f"the value came from {who}, through {exchange.function} at {at}",
    }
    found["fix"] = {"text": f"see the birth on {who}", "verified": False, "file": birth["file"], "line": birth["line"]}
    birth["phase"] = "communication"


def _add_made(found, birth, place, maker, name):
    cause, fix, by = found["cause"], found.get("fix"), birth["op"]
    at = f"{os.path.basename(place.file)}:{place.line} in {place.function}"
    if place.written_so:
        text = f"the script itself writes NaN or Inf into {maker or name or 'it'} at {at}"
    elif place.how == "made":
        text = f"{maker or name or 'what it returns'} is made not finite at {at}; what that line reads is finite"
    else:
        text = f"{maker or name or 'it'} comes out not finite of the call at {at}"
    is_elsewhere = (place.file, place.line) != (birth["file"], birth["line"])
    if place.written_so and not is_elsewhere and found.get("came_from") in A_NUMBER:
        cause["text"] = text
        if fix and not fix["verified"]:
            fix["text"] = WRITE_FINITE
    if is_elsewhere and cause["class"] in ("bad-data", "unknown"):
        taken = f"; {by} takes it in at {os.path.basename(birth['file'])}:{birth['line']}" if by else ""
        cause["text"] = text + taken
    birth["datum"] = {
        "how": "made" if place.how == "made" else "read",
        "text": text,
        "field": name or maker,
        "file": working_folder.absolute(place.file),
        "line": place.line,
        "function": place.function,
        "source": place.source,
    }
    birth["phase"] = "data"
    if is_elsewhere and fix and not fix["verified"] and not fix.get("diff") and cause["class"] == "bad-data":
        fix.update({"file": working_folder.absolute(place.file), "line": place.line})
        fix["text"] = (
            "write a finite number at this line" + (", or drop that sample" if birth.get("rows") else "")
            if place.written_so
            else "guard this line: what has no spread, no data or no entry needs a value of its own"
        )
