"""A division by zero inside a function that the user's line calls, as torch.corrcoef: the line has no denominator that
could be clamped."""

from __future__ import annotations

import ast

from ..base import sources
from . import value_tracer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Findings

OR = "; or, not tried here, "


def add_to(found: Findings) -> None:
    birth, fix = (found["births"][0] if found.get("births") else None), found.get("fix")
    if birth is None or not fix or fix.get("diff") or not found.get("clamps_divisor"):
        return
    if birth["phase"] != "forward" or not birth["op"].startswith("aten::div"):
        return
    if sources.is_of_package(birth["file"] or ""):
        return
    statement = value_tracer.statement_at(birth["file"], birth["line"])
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)) or _divides(statement):
        return
    if not any(isinstance(node, ast.Call) for node in ast.walk(statement)):
        return
    _, _, other = fix["text"].partition(OR)
    if found["clamps_divisor"] == "rule":
        other = (
            "the division is inside what this line calls, where it cannot be changed: give that call nothing that is "
            "all zero or has no spread, or take it out before"
        )
    if other:
        tried = f"; tried: {fix['tried']}" if fix["verified"] and fix.get("tried") else ""
        fix["text"] = f"{other} (not tried here){tried}"


def _divides(statement):
    """Is there a division in it, or a call that is named so?"""
    for node in ast.walk(statement):
        if isinstance(node, (ast.Div, ast.FloorDiv)):
            return True
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if "div" in name:
            return True
    return False
