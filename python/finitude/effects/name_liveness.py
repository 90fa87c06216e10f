"""Will a name be read before it is bound again? Asked of names whose values a rewind cannot bring back."""

from __future__ import annotations

import bisect
import dis
import types

from ..base._places import is_library
from ..program.optimizer_members import is_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType

READS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "DELETE_")
NO_WAY_ON = {
    "RETURN_VALUE",
    "RETURN_CONST",
    "RAISE_VARARGS",
    "RERAISE",
    "JUMP_FORWARD",
    "JUMP_BACKWARD",
    "JUMP_ABSOLUTE",
    "JUMP_BACKWARD_NO_INTERRUPT",
}


def _names(instruction):
    """(read, bound) by an instruction, in this order; 3.13 has some that do two things."""
    if instruction.opname == "LOAD_FAST_AND_CLEAR":  # what a comprehension puts aside may be unbound
        return [], []
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    words = instruction.opname.replace("_FAST_", "_FAST ").split(" ")
    read = [n for n, w in zip(names, words * 2) if any(w.startswith(r.rstrip("_")) for r in READS)]
    bound = [n for n, w in zip(names, words * 2) if w.startswith("STORE_")]
    return read, bound


def is_read(code, start, name):
    """May code that continues behind the instruction at `start` read `name` before it binds it? Handlers are not
    followed."""
    instructions = list(dis.get_instructions(code))
    at = {i.offset: n for n, i in enumerate(instructions)}
    # A frame may be reported to be in the caches behind its instruction.
    todo, seen = [bisect.bisect_right([i.offset for i in instructions], start)], set()
    while todo:
        n = todo.pop()
        if n in seen or n >= len(instructions):
            continue
        seen.add(n)
        one = instructions[n]
        read, bound = _names(one)
        if one.opname == "STORE_FAST_LOAD_FAST":
            read = [r for r in read if r not in bound]
        if name in read:
            return True
        if name in bound:
            continue
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            todo.append(at.get(one.argval, len(instructions)))
        if one.opname not in NO_WAY_ON:
            todo.append(n + 1)
    return False


def _mentions(code, name):
    """Does a function, or one inside of it, read that global variable or that variable of a function around it?"""
    return any(
        i.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE")) and i.argval == name
        for i in dis.get_instructions(code)
    ) or any(isinstance(c, types.CodeType) and _mentions(c, name) for c in code.co_consts)


def will_read(frame: FrameType | None, names: Iterable[tuple[str, CodeType | None]]) -> list[str]:
    """Those of `names` that the user's frames, from `frame` outwards, may read before they bind them. names: (name,
    code of the function whose own it is, or None for one of a module or a class body)."""
    wanted, found = set(names), []
    while frame is not None and wanted:
        code = frame.f_code
        if not is_library(code.co_filename):
            mentioned = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names}
            for name, owner in sorted(
                (w for w in wanted if w[0] in mentioned and _may_be(code, *w)), key=lambda w: w[0]
            ):
                inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
                if not is_function(frame) and frame.f_locals is frame.f_globals:
                    inner += [
                        f.__code__
                        for f in list(frame.f_globals.values())
                        if isinstance(f, types.FunctionType) and f.__globals__ is frame.f_globals
                    ]
                if is_read(code, frame.f_lasti, name) or any(_mentions(c, name) for c in inner):
                    found.append(name)
                    wanted.discard((name, owner))
        frame = frame.f_back
    return list(dict.fromkeys(found))


def _may_be(code, name, owner):
    """Is what a running function calls by that name perhaps that name of `owner`? A plain local is nobody else's."""
    if owner is None:  # functions have their own of that name
        return name not in code.co_varnames
    return (
        code is owner
        or name in (*owner.co_cellvars, *owner.co_freevars)
        and name in (*code.co_cellvars, *code.co_freevars)
    )
