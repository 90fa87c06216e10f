"""An exception of Python's own arithmetic that ended the program: a division by zero, a logarithm of zero, a power out
of range. No value was NaN or Inf then, so there is no alarm; an advisory says which number the exception is about, and
where that was set.
"""

from __future__ import annotations

import ast
import typing

from .. import _native
from ..base import sources
from ..program import frames_at_raise, optimizer_members, statements
from ..report import incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Birth, Cause
    from ..report.document import Report

KIND = "ended-by-arithmetic"  # src/incident/report.cpp
_DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)
_MOST_SOURCE = 80  # characters of a line that is quoted
_LARGEST_POWER = 64.0  # of what is computed here again


class Operand(typing.NamedTuple):
    """What the exception is about: an expression of the program and its value."""

    node: ast.expr
    value: float
    why: str  # what makes it so, or ""


def advise(report: Report, error: BaseException | None) -> None:
    """An advisory of that exception, where it is one of arithmetic; nothing after an alarm or of any other."""
    if error is None or report.alarms:
        return
    for link in reversed(frames_at_raise.chain(error)):
        if not _is_of_arithmetic(link):
            continue
        for frame, line in frames_at_raise.frames(link):
            _advise_at(report, link, frame, line)
            return


def _is_of_arithmetic(error):
    if isinstance(error, (ZeroDivisionError, OverflowError)):
        return True
    words = str(error)
    if isinstance(error, ValueError):
        return "math domain error" in words or words.startswith("expected a ")
    return isinstance(error, RuntimeError) and words == "ZeroDivisionError"  # of tensors of integers


def _advise_at(report: Report, error: BaseException, frame: Any, line: int) -> None:
    file = frame.f_code.co_filename
    place = f"{file.rpartition('/')[2]}:{line}"
    statement = statements.at(file, line)
    if statement.is_check:
        return  # the program's own decision
    names = {**frame.f_globals, **optimizer_members.names_of(frame)}
    operand = _operand(statement, names, isinstance(error, OverflowError), _called_at(error, frame))
    if operand is None:
        what = f"at {place}: {sources.line(file, line)[:_MOST_SOURCE]}; no NaN or Inf was seen"
    else:
        what = f"at {place}: {statements.text_of(operand.node)} is {operand.value:g}"
        if operand.why:
            what += f", {operand.why}"
        if isinstance(operand.node, ast.Name):
            _, set_at = statements.assigned(statement, operand.node.id)
            if set_at:
                what += f" (set at line {set_at}: {sources.line(file, set_at)[:_MOST_SOURCE]})"
        what += "; it is finite, and no NaN or Inf was seen"
    text = f"{type(error).__name__} ended the program {what}"
    cause: Cause = incident.cause(_class_of(error, operand), text, "likely")
    births: list[Birth] = [incident.birth("forward", "", file, line)]
    report.advise(KIND, _native.counters()["steps"], text, cause, births)


def _class_of(error, operand):
    if isinstance(error, OverflowError):
        return "overflow"
    if isinstance(error, ValueError):
        if operand is not None and operand.value != 0:
            return "negative-domain"
        return "log-of-zero"
    return "division-by-zero"


def _called_at(error, frame):
    """(line, column, end column) of the expression in that frame that raised; None before Python 3.11."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame is not frame:
        traceback = traceback.tb_next
    positions = getattr(frame.f_code, "co_positions", None)
    if traceback is None or positions is None or traceback.tb_lasti < 0:
        return None
    for number, (line, end_line, column, end_column) in enumerate(positions()):
        if number == traceback.tb_lasti // 2:
            return (line, column, end_line, end_column) if column is not None else None
    return None


def _operand(statement, names, is_overflow, where):
    """The number that the expression at `where` cannot take; where that is not known, anything in the statement."""
    for node in _candidates(statement, where):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, _DIVISIONS):
            denominator = node.right if isinstance(node, ast.BinOp) else node.value
            value = _value(denominator, names)
            if value == 0:
                return Operand(denominator, 0.0, _why(statement, denominator, names))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            base = _value(node.left, names)
            if base is not None and (base == 0 or is_overflow):
                return Operand(node.left, base, "")
        elif isinstance(node, ast.Call):
            for argument in node.args:
                value = _value(argument, names)
                if value is not None and (is_overflow or value <= 0):
                    return Operand(argument, value, _why(statement, argument, names))
    return None


def _candidates(statement, where):
    nodes = [n for n in ast.walk(statement.body) if isinstance(n, (ast.expr, ast.AugAssign))] if statement.body else []
    if where is None:
        return [n for n in nodes if n.lineno <= statement.line <= (n.end_lineno or 0)]
    line, column, end_line, end_column = where
    return [
        n
        for n in nodes
        if (n.lineno, n.col_offset) == (line, column) and (n.end_lineno, n.end_col_offset) == (end_line, end_column)
    ]


def _value(node: Any, names: Any) -> float | None:
    """The number that an expression has, as far as that can be known without running code of the program's."""
    if isinstance(node, ast.Constant):
        return frames_at_raise.number(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = _value(node.operand, names)
        return inner if inner is None or isinstance(node.op, ast.UAdd) else -inner
    if isinstance(node, ast.BinOp):
        return _computed(node.op, _value(node.left, names), _value(node.right, names))
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return None
    if not statements.is_chain(node):
        return None
    value, followed = statements.resolved(node, names)
    return frames_at_raise.number(value) if followed is node else None


def _computed(operation, a, b):
    if a is None or b is None:
        return None
    try:
        if isinstance(operation, ast.Add):
            return a + b
        if isinstance(operation, ast.Sub):
            return a - b
        if isinstance(operation, ast.Mult):
            return a * b
        if isinstance(operation, ast.Div):
            return a / b
        if isinstance(operation, ast.Pow) and abs(b) <= _LARGEST_POWER:
            power = a**b
            return power if isinstance(power, float) else None
    except ArithmeticError:
        return None
    return None


def _why(statement, node, names):
    """Of 1 - b ** n with n = 0, also where a name was set to that."""
    if isinstance(node, ast.Name):
        node, _ = statements.assigned(statement, node.id)
    is_correction = (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(node.left, ast.Constant)
        and node.left.value == 1
        and isinstance(node.right, ast.BinOp)
        and isinstance(node.right.op, ast.Pow)
    )
    if not is_correction or _value(node.right.right, names) != 0:
        return ""
    count = statements.text_of(node.right.right)
    return f"which is 1 - b ** n with n = 0: count the step ({count}) before this line"
