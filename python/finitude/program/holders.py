"""What holds a tensor that no module and no variable of a running function does: a variable that a function kept, an
attribute of an object, an element of a list. Asked once an alarm has come, never in a healthy step: each look goes
through all objects of the program."""

from __future__ import annotations

import gc
import sys
import types

import torch

from ..base._places import is_library
from ..base.kinds import is_a

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

    from ..base.types import Tensor

DEEPEST = 3  # containers in one another
MOST = 1000  # tensors, and elements of a container


def labels(tensors: Collection[Tensor], but: Collection[Any] = ()) -> dict[int, str]:
    """{id of a tensor: what holds it}, as "w" or "Trainer.params['w'][0]", of those for which that is found. but:
    containers that say nothing, such as the groups of an optimizer."""
    if not 0 < len(tensors) <= MOST:
        return {}
    found: dict[int, str] = {}
    # Of an object: the tensors in it, and where in it they are.
    inner: dict[int, list[tuple[int, str]]] = {id(t): [(id(t), "")] for t in tensors}
    objects: list[Any] = list(tensors)
    for _ in range(DEEPEST):
        skipped = {id(one) for one in (*but, tensors, objects, but)}
        around: dict[int, list[tuple[int, str]]] = {}
        holders: list[Any] = []
        for holder in gc.get_referrers(*objects):
            if id(holder) in skipped:
                continue
            for name, held, is_whole in _parts(holder):
                for number, place in inner.get(id(held), ()):
                    if is_whole:
                        found.setdefault(number, name + place)
                    else:
                        around.setdefault(id(holder), []).append((number, name + place))
            if id(holder) in around:
                holders.append(holder)
        inner = {k: [(n, p) for n, p in v if n not in found] for k, v in around.items()}
        objects = [one for one in holders if inner[id(one)]]
        if not objects:
            break
    return found


def _parts(holder: Any) -> Iterator[tuple[str, Any, bool]]:
    """(name, what is held under it, is that the whole name) of what an object holds."""
    kind = type(holder)
    if kind is types.CellType:
        try:
            yield from ((name, holder.cell_contents, True) for name in _variables(holder))
        except ValueError:  # it is empty
            return
    elif kind is dict and len(holder) <= MOST:
        of = _owner(holder)
        for key, value in list(holder.items()):
            if of is None:
                yield f"[{key!r}]" if is_a(key, (str, int)) else "[...]", value, False
            elif is_a(key, str):
                yield of + key, value, True
    elif kind is dict and (of := _owner(holder)) == "":  # the variables of a large module
        yield from ((key, value, True) for key, value in list(holder.items()) if is_a(key, str))
    elif kind in (list, tuple) and len(holder) <= MOST:
        yield from ((f"[{i}]", value, False) for i, value in enumerate(holder))
    elif _is_of_program(kind):
        try:
            held = object.__getattribute__(holder, "__dict__")
        except AttributeError:
            return
        if type(held) is dict:
            yield from ((f"{kind.__name__}.{key}", value, True) for key, value in list(held.items()))


def _variables(cell):
    """The names under which functions keep it."""
    for closure in gc.get_referrers(cell):
        if type(closure) is not tuple:
            continue
        for function in gc.get_referrers(closure):
            if (
                type(function) is types.FunctionType
                and function.__closure__ is closure
                and not is_library(function.__code__.co_filename)
            ):
                yield function.__code__.co_freevars[next(i for i, c in enumerate(closure) if c is cell)]


def _owner(names):
    """What goes before the keys of a dict: "" of the variables of a module, "Trainer." of an object's attributes, None
    of any other."""
    name = names.get("__name__")
    module = sys.modules.get(name) if is_a(name, str) else None
    if module is not None and getattr(module, "__dict__", None) is names:
        return ""
    for one in gc.get_referrers(names):
        if _is_of_program(type(one)):
            try:
                if object.__getattribute__(one, "__dict__") is names:
                    return f"{type(one).__name__}."
            except AttributeError:
                continue
    return None


def _is_of_program(kind):
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    own = kind.__module__ == "__main__" or file is not None and not is_library(file)
    return own and not issubclass(kind, (torch.Tensor, torch.optim.Optimizer))
