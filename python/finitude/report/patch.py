"""The change with which the step came out finite as a unified diff of the program's line, where that line is simple
enough to be rewritten for certain."""

from __future__ import annotations

import ast
import contextlib
import difflib
import os

from ..base import sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Findings

OPERATORS = {"div": ast.Div, "true_divide": ast.Div, "pow": ast.Pow}
# Their place among the arguments of the call, and among the operands of an operator.
PLACES = {"self": 0, "input": 0, "other": 1, "exponent": 1}

_SPAN = ("lineno", "col_offset", "end_lineno", "end_col_offset")

WITH_ARGUMENTS = ("div", "true_divide", "pow", "softmax", "log_softmax", "logsumexp")  # as methods


_started_in = os.sep


def note_folder() -> None:
    """The program is started in this one, and may work in another later."""
    global _started_in
    with contextlib.suppress(OSError):  # it was removed
        _started_in = os.getcwd()


def add_diff(found: Findings) -> None:
    """Takes the change as code out of the findings and puts the diff in, or nothing."""
    fix = found.get("fix")
    if fix is None or (edit := fix.pop("edit", None)) is None:
        return
    if sources.is_of_package(edit.get("file") or ""):
        return  # the fix names the line of the program that leads there
    if edit.get("file") and found["births"] and found["births"][0]["phase"] == "backward":
        # What is changed is the forward op, wherever the backward that needs it was called from.
        fix["file"], fix["line"] = edit["file"], edit["line"]
    if not edit["is_number"]:  # with an edit that did not do there is none
        place, name = _found_by(edit["file"])
        if diff := diff_of(_lines(edit["file"]), edit, name):
            fix["diff"] = place + diff
            fix["file"], fix["line"] = edit["file"], edit["line"]


def _lines(path):
    """With the ends that they have in the file, so that the diff is a patch that applies."""
    try:
        with open(path, encoding="utf-8", newline="") as f:
            return list(f)
    except (OSError, ValueError):
        return sources.lines(path)


def _found_by(path):
    """(a line or "", name) with which `patch -p0`, `patch -p1` and `git apply` find the file from where the program was
    started; where it lies elsewhere, the line says from which folder. Both tools skip such a line."""
    path, is_file = os.path.join(_started_in, path), os.path.isfile(path)
    # They change no file through a link, which is why the name is that of the file itself.
    relative = os.path.relpath(os.path.realpath(path) if is_file else path, os.path.realpath(_started_in))
    place = ""
    if relative.split(os.sep)[0] == os.pardir:
        folder, relative = os.path.split(os.path.realpath(path))
        place = f"in {folder}:\n" if is_file and folder.isprintable() else ""
    # A tab ends a name with blanks.
    return place, f"./{relative}" + "\t" * (" " in relative)


def _ended(line):
    return line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def diff_of(lines, edit, name):
    """The diff, or None: the line computes this in several places, or not in a way that is known here."""
    text = "".join(lines)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    statement = _statement(tree, edit["line"])
    if statement is None or not text.isascii():  # columns count bytes
        return None
    torch_names, modules = _torch_names(tree), _modules(tree)
    nodes = list(_own_nodes(statement))
    exactly = [n for n in ast.walk(statement) if [getattr(n, a, None) for a in _SPAN] == edit.get("span")]
    operands = [o for node in exactly or nodes if (o := _operand(node, edit, torch_names, modules)) is not None]
    if len(operands) != 1 or operands[0].lineno != operands[0].end_lineno:
        return None
    operand, code = operands[0], edit["code"]
    row, begin, end = operand.lineno - 1, operand.col_offset, operand.end_col_offset
    source = lines[row][begin:end]
    if "torch." in code and not _imports_torch(tree):
        return None
    if code.count("{x}") + code.startswith(".") > 1 and not _can_repeat(operand):
        return None
    simple = isinstance(operand, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) or code.startswith("torch.")
    changed = source if simple else f"({source})"
    if code.startswith("."):
        changed += code.replace("{x}", changed)
    elif code.startswith("torch."):
        changed = code.replace("{x}", source)
    else:  # an expression, in parentheses unless it is an argument of its own
        changed = code.replace("{x}", changed)
        if not (lines[row][:begin].endswith("(") and lines[row][end:].startswith((")", ","))):
            changed = f"({changed})"
    after = list(lines)
    after[row] = lines[row][:begin] + changed + lines[row][end:]
    try:
        ast.parse("".join(after))
    except SyntaxError:
        return None
    return "".join(map(_ended, difflib.unified_diff(lines, after, name, name)))


def _statement(tree, line):
    """The innermost statement that the line belongs to."""
    best = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
            place = (node.lineno, -(node.end_lineno or node.lineno))
            if best is None or place >= best[0]:
                best = place, node
    return best and best[1]


def _own_nodes(statement):
    """What the statement computes itself, not the statements or functions inside it."""
    todo = [statement]
    while todo:
        node = todo.pop()
        yield node
        todo += [
            n
            for n in ast.iter_child_nodes(node)
            if not isinstance(n, (ast.stmt, ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp))
        ]


def _torch_names(tree):
    """Names under which the program has torch and its modules of functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(a.asname or a.name.split(".")[0] for a in node.names if a.name.split(".")[0] == "torch")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names.update(a.asname or a.name for a in node.names if a.name in ("functional", "special", "linalg", "nn"))
    return names


def _modules(tree):
    """Names that the program imports."""
    return {
        a.asname or a.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for a in node.names
    }


def _imports_torch(tree):
    return any(
        isinstance(n, ast.Import) and any(a.name.split(".")[0] == "torch" and a.asname is None for a in n.names)
        for n in ast.walk(tree)
    )


def _operand(node, edit, torch_names, modules):
    """The expression of the edited argument, if the node computes that operator."""
    operator = edit["op"].rpartition("::")[2].lstrip("_")
    name = operator.rstrip("_")
    place = PLACES.get(edit["arg"])
    if place is None:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, OPERATORS.get(name, ())):
        return (node.left, node.right)[place]
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr not in (name, operator)
    ):
        return None
    root = node.func.value
    while isinstance(root, ast.Attribute):
        root = root.value
    of_module = isinstance(root, ast.Name) and root.id in torch_names
    if not of_module and (
        isinstance(root, ast.Name) and root.id in modules or bool(node.args) != (name in WITH_ARGUMENTS)
    ):
        return None  # another library's, or another thing of that name: logger.log("loss", x)
    operands = node.args if of_module else [node.func.value, *node.args]
    for keyword in node.keywords:
        if keyword.arg == edit["arg"]:
            return keyword.value
    found = operands[place] if place < len(operands) else None
    return None if isinstance(found, ast.Starred) else found


def _can_repeat(operand):
    """Computed twice it is the same and costs nothing."""
    return all(
        isinstance(
            n,
            (
                ast.Name,
                ast.Attribute,
                ast.Subscript,
                ast.Constant,
                ast.expr_context,
                ast.Slice,
                ast.Tuple,
                ast.BinOp,
                ast.UnaryOp,
                ast.operator,
                ast.unaryop,
            ),
        )
        for n in ast.walk(operand)
    )
