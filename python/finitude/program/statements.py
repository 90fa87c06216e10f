"""Which values the statement at a line of a program reads, and whether it is a check of the program's own
that gives up: from its source."""

from __future__ import annotations

import ast
import functools
import re

from ..base import sources
from ..base.kinds import is_a

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_OF_A_SHAPE = {
    "shape",
    "dtype",
    "device",
    "ndim",
    "layout",
    "size",
    "dim",
    "numel",
    "nelement",
    "stride",
    "element_size",
    "requires_grad",
    "grad_fn",
    "is_leaf",
    "nbytes",
    "itemsize",
    "names",
}
_OF_NO_VALUE = {"len", "type", "id", "isinstance", "issubclass", "hasattr", "callable"}
_ENDS = {"exit", "quit", "_exit", "abort"}
_ASKS = re.compile(r"nan|inf$|finite", re.IGNORECASE)
_BODIES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_MOST_LINES = 50_000


class Statement:
    """What is known of one line. operands: expressions (ast) of the values that it depends on; is_check:
    it is the program's own decision to end, `raise`, `assert` or an exit, and the operands are those of
    its conditions; asks: they ask for NaN or Inf by name."""

    def __init__(self, operands=(), is_check=False, asks=False, body=None, line=0):
        self.operands, self.is_check, self.asks, self.body, self.line = (
            list(operands),
            is_check,
            asks,
            body,
            line,
        )


@functools.lru_cache(maxsize=64)
def _tree(file):
    lines = sources.lines(file)
    if not lines or len(lines) > _MOST_LINES:
        return None
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _path_to(tree, line):
    """The nodes from the tree down to the innermost statement of that line."""
    path, node = [tree], tree
    while True:
        inner = [
            n for n in ast.iter_child_nodes(node) if _first_line(n) <= line <= (getattr(n, "end_lineno", None) or 0)
        ]
        inner = [n for n in inner if isinstance(n, (ast.stmt, ast.excepthandler)) or type(n).__name__ == "match_case"]
        if not inner:
            return path
        node = inner[-1]
        path.append(node)


def _first_line(node):
    if type(node).__name__ == "match_case":
        return node.pattern.lineno
    decorators = getattr(node, "decorator_list", None) or ()
    return min([getattr(node, "lineno", 1 << 60), *(d.lineno for d in decorators)])


def at(file: str, line: int) -> Statement:
    """The Statement at a line; an empty one where there is no source."""
    tree = _tree(file)
    path = _path_to(tree, line) if tree is not None else []
    if len(path) < 2:
        return Statement()
    statement = path[-1]
    inner = next((i for i in range(len(path) - 1, -1, -1) if isinstance(path[i], _BODIES)), 0)
    if _gives_up(statement):
        tests = [statement.test] if isinstance(statement, ast.Assert) else []
        tests += [node.test for node in path[inner:-1] if isinstance(node, (ast.If, ast.While))]
        return Statement(_operands(tests), True, _asks(tests), path[inner], line)
    return Statement(_operands(_heads(statement)), body=path[inner], line=line)


def _gives_up(statement):
    if isinstance(statement, (ast.Raise, ast.Assert)):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    called = call.func if isinstance(call, ast.Call) else None
    return getattr(called, "attr", getattr(called, "id", "")) in _ENDS


def _heads(statement):
    """The expressions of a statement, of a compound one those before its body."""
    return [
        child
        for child in ast.iter_child_nodes(statement)
        if not isinstance(child, (ast.stmt, ast.excepthandler)) and type(child).__name__ != "match_case"
    ]


def _asks(nodes):
    named = (getattr(n, "attr", getattr(n, "id", "")) for node in nodes for n in ast.walk(node))
    return any(isinstance(name, str) and _ASKS.search(name) for name in named)


def _operands(nodes):
    found = []
    for node in nodes:
        _visit(node, found)
    return found


def _visit(node, found):
    """Names, attributes and elements whose values count, the longest expressions of them; not what is
    asked for its shape alone, and no text."""
    if isinstance(node, ast.Attribute) and node.attr in _OF_A_SHAPE or isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OF_NO_VALUE:
        return
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load):
            found.append(node)
        return
    if (
        isinstance(node, (ast.Attribute, ast.Subscript))
        and isinstance(getattr(node, "ctx", None), ast.Load)
        and is_chain(node)
    ):
        found.append(node)
        return
    for child in ast.iter_child_nodes(node):
        _visit(child, found)


def is_chain(node: Any) -> bool:
    """Whether it is a name, or attributes and constant elements of one: `a.b[0]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _OF_A_SHAPE
            or isinstance(node, ast.Subscript)
            and not isinstance(node.slice, ast.Constant)
        ):
            return False
        node = node.value
    return isinstance(node, ast.Name)


def assignment(statement: Statement, name: str) -> tuple[Sequence[Any], int]:
    """(the operands of what the name was set to last before that statement, the line), or ((), 0)."""
    value, line = assigned(statement, name)
    return (_operands([value]), line) if value is not None else ((), 0)


def assigned(statement: Statement, name: str) -> tuple[Any, int]:
    """(the expression that the name was set to last before that statement, the line), or (None, 0)."""
    found, line = None, 0
    node: Any
    for node in ast.walk(statement.body) if statement.body is not None else ():
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [getattr(node, "target", None)]
            if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr))
            else ()
        )
        named = any(
            isinstance(t, ast.Name) and t.id == name
            for target in targets
            if target is not None
            for t in ast.walk(target)
        )
        if named and node.value is not None and line < node.lineno < statement.line:
            found, line = node.value, node.lineno
    return found, line


def called(file: str, line: int, functions: Sequence[str]) -> str:
    """What the statement at that line calls one of these functions; "": it calls none of them by name."""
    tree = _tree(file)
    path = _path_to(tree, line) if tree is not None else []
    for node in [n for head in _heads(path[-1]) for n in ast.walk(head)] if len(path) > 1 else ():
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in functions:
            return text_of(node.func)
    return ""


def text_of(node: ast.AST) -> str:
    return ast.unparse(node)


def resolved(node: Any, names: Mapping[str, Any]) -> tuple[Any, Any]:
    """The object that an operand refers to, as far as it can be followed without running code of the
    program's: (object, the part of the expression that was followed), or (None, None)."""
    if isinstance(node, ast.Name):
        return (names[node.id], node) if node.id in names else (None, None)
    value, followed = resolved(node.value, names)
    if followed is not node.value:
        return value, followed
    if isinstance(node, ast.Attribute):
        try:
            held = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            return value, followed
        inner = [held, *(held.get(key) for key in ("_parameters", "_buffers", "_modules"))]
        found = next((d for d in inner if isinstance(d, dict) and node.attr in d), None)
        return (found[node.attr], node) if found is not None else (value, followed)
    key = node.slice.value
    if is_a(value, dict) and type(value).__getitem__ is dict.__getitem__ and key in value:
        return dict.__getitem__(value, key), node
    if is_a(value, (list, tuple)) and type(key) is int and -len(value) <= key < len(value):
        base: Any = list if is_a(value, list) else tuple
        return base.__getitem__(value, key), node
    return value, followed
