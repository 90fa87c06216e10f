"""Objects that one rank gives to others through torch.distributed: they travel pickled, so that no operator shows where
their values came from. The call in the source line does."""

from __future__ import annotations

import ast
import dataclasses
import re

from . import value_tracer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from .bad_values import Look

_MOST_RANKS = 4096
_ROOT = re.compile(r"self\.\w+|\w+")
# Position of the list that the call fills, of what this rank gives, and of the rank that sends; None: there is none
_OBJECTS = {
    "all_gather_object": (0, 1, None),
    "gather_object": (1, 0, None),
    "broadcast_object_list": (0, 0, 1),
    "scatter_object_list": (0, 1, 2),
    "recv_object_list": (0, None, 1),
}


@dataclasses.dataclass
class Exchange:
    """A call of torch.distributed that gives objects of one rank to others."""

    function: str
    sender: int | None  # rank; None: not known
    given: frozenset[str]  # names in what this rank gave


def at(frame: FrameType, place: value_tracer.Place, name: str, look: Look) -> Exchange | None:
    """The Exchange by which a name became bad at that place, or None."""
    for statement in value_tracer.run_at(place.file, place.line):
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call):
                continue
            function = getattr(call.func, "attr", getattr(call.func, "id", ""))
            filled, given, source = _OBJECTS.get(function, (None, None, None))
            if filled is None or _root_of(call, filled) != name:
                continue
            if any(k.arg in ("group", "group_src") for k in call.keywords):
                sender = None  # ranks of a group have other numbers
            elif source is None:
                sender = _first_bad(frame.f_locals.get(name), look)
            else:
                sender = _number_of(call, source, frame)
            return Exchange(function, sender, _names_in(call, given))
    return None


def _root_of(call, position):
    return root(ast.unparse(call.args[position])) if position < len(call.args) else ""


def _names_in(call, position):
    if position is None or position >= len(call.args):
        return frozenset()
    inside = (n for n in ast.walk(call.args[position]) if isinstance(n, (ast.Name, ast.Attribute)))
    return frozenset(root(ast.unparse(n)) for n in inside)


def _first_bad(items, look):
    items = items if isinstance(items, list) else []
    return next((i for i, item in enumerate(items[:_MOST_RANKS]) if look.is_bad(item)), None)


def _number_of(call, position, frame):
    """The rank that an argument names, None where that is not plain."""
    named = [k.value for k in call.keywords if k.arg == "src"]
    node = named[0] if named else call.args[position] if position < len(call.args) else ast.Constant(0)
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(node, ast.Name):
        value = frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    return value if type(value) is int else None


def root(expression: str) -> str:
    """The name that an expression begins with, as `x` or `self.x`; "" where it begins with none."""
    found = _ROOT.match(expression)
    return found.group() if found else ""
