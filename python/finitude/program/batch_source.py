"""How a batch came in, where no DataLoader was seen: read off the source of the loop that took it."""

from __future__ import annotations

import ast

import torch

from ..base import sources
from ..base.kinds import is_a
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Birth, Findings


def _loops_around(tree, line):
    """The `for` statements whose body holds the line, innermost first."""
    loops = [
        n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.AsyncFor)) and n.lineno < line <= (n.end_lineno or 0)
    ]
    return sorted(loops, key=lambda n: -n.lineno)


def iterates_data() -> bool:
    """Does the innermost loop of the user's code walk over data that lies ready (a list, a tensor)?

    Then taking the next batch draws no random number, and the generators of the window's start are those right after
    the batch was fetched. A loop that counts, or a generator, may draw its batch itself: unknown, so False.
    """
    for frame in optimizer_members.user_frames():
        try:
            with open(frame.f_code.co_filename, encoding="utf-8") as f:
                loops = _loops_around(ast.parse(f.read()), frame.f_lineno)
        except (OSError, SyntaxError, ValueError):
            return False
        if not loops:
            continue
        call = loops[0].iter
        sources = [call]
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("enumerate", "zip"):
            sources = call.args
        names = optimizer_members.names_of(frame)
        values = [names.get(s.id) for s in sources if isinstance(s, ast.Name)]
        return len(values) == len(sources) > 0 and all(is_a(v, (list, tuple, torch.Tensor)) for v in values)
    return False


def _data_names(loop):
    """The names that a `for` binds to data: not the numbers of range, nor the index that enumerate adds."""
    source, target = loop.iter, loop.target
    called = source.func.id if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) else ""
    if called == "range":
        return set()
    if called == "enumerate" and isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == 2:
        target = target.elts[1]
        if source.args and isinstance(source.args[0], ast.Call) and getattr(source.args[0].func, "id", "") == "range":
            return set()
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def name_reader_on_the_way(found: Findings) -> None:
    """A birth that no operation made has the line that reads it first. Where that one only prints or checks it, the
    first that leads on to the sink says more."""
    births, path = found.get("births"), [p for p in found.get("path") or () if p.get("file")]
    if not births or not path or births[0].get("phase") not in ("data", "state") or births[0].get("op"):
        return
    on_it = any((p["file"], p["line"]) == (births[0].get("file"), births[0].get("line")) for p in path)
    if not on_it and _keeps_nothing(births[0].get("file"), births[0].get("line")):
        first = path[0]
        births[0].update(
            {
                "file": first["file"],
                "line": first["line"],
                "source": first.get("source", ""),
                "module": first.get("module", ""),
            }
        )


def _keeps_nothing(file, line):
    """Does the statement at that line give what it reads no name, as a call of print, an `if` or an assertion?"""
    try:
        tree = ast.parse("".join(sources.lines(file or "")))
    except (SyntaxError, ValueError):
        return False
    around = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    innermost = min(around, key=lambda n: (n.end_lineno or n.lineno) - n.lineno, default=None)
    return isinstance(innermost, (ast.Expr, ast.Assert, ast.If, ast.While))


def name_loop_line(birth: Birth) -> None:
    """Moves a data birth without an op of its own from its first reader to the `for` line that bound what was read."""
    if (
        birth.get("phase") != "data"
        or birth.get("op")
        or not birth.get("file")
        or birth.get("datum", {}).get("how") in ("made", "read")
    ):
        return
    try:
        with open(birth["file"], encoding="utf-8") as f:
            text = f.read()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return
    line = birth["line"]
    used = set()
    for node in ast.walk(tree):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if isinstance(node, ast.Name) and first <= line <= last:
            used.add(node.id)
    for loop in _loops_around(tree, line):
        if _data_names(loop) & used:
            birth["line"] = loop.lineno
            birth["source"] = text.splitlines()[loop.lineno - 1].strip()[:400]
            return
