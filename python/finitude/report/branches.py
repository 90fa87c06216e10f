"""Which expressions of an optimizer's step run in each step, as far as its source says so."""

from __future__ import annotations

import ast

ENTRY = "step"
JUMPS = (ast.Continue, ast.Break, ast.Return)
BRANCHES = (ast.If, ast.IfExp, ast.While, ast.Match, ast.Try, ast.BoolOp, ast.Lambda)


class Branches:
    """Of a class, or of a module."""

    def __init__(self, owner: ast.AST):
        self._owner = owner
        self._parents = {child: node for node in ast.walk(owner) for child in ast.iter_child_nodes(node)}

    def always_runs(self, node: ast.AST, inner: frozenset[str] = frozenset()) -> bool:
        """Does it, for a parameter that has a gradient? inner: names of helpers that are looked at already."""
        function, is_sure = self._function_of(node)
        if function is None or not is_sure:
            return False
        for other in ast.walk(function):
            if isinstance(other, JUMPS) and _place(other) < _place(node):
                within, is_sure = self._function_of(other, without_grad=True)
                if within is function and is_sure:
                    return False
        name = function.name
        if name == ENTRY or name in inner:
            return name == ENTRY
        calls = [n for n in ast.walk(self._owner) if isinstance(n, ast.Call) and _called(n) == name]
        return any(self.always_runs(call, inner | {name}) for call in calls)

    def _function_of(self, node, without_grad=False):
        """(the function that it is in, is nothing in between that may not run). without_grad: the second is, may it run
        for a parameter that has a gradient."""
        is_sure, child = True, node
        while (parent := self._parents.get(child)) is not None:
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return parent, is_sure
            if isinstance(parent, BRANCHES) and child is not getattr(parent, "test", None):
                has = _asks_of_gradient(parent, child)
                if without_grad:
                    is_sure = is_sure and has is not False
                elif has is not True:
                    is_sure = is_sure and isinstance(parent, ast.Try) and child in parent.body
            child = parent
        return None, False


def _asks_of_gradient(branch, child):
    """Does this part of a branch run where there is a gradient? None: the branch asks something else."""
    test = getattr(branch, "test", None)
    if not isinstance(branch, ast.If) or not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    is_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
    if not is_none or not isinstance(test.ops[0], (ast.Is, ast.IsNot)) or "grad" not in ast.unparse(test.left):
        return None
    return (child in branch.body) == isinstance(test.ops[0], ast.IsNot)


def _called(call):
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _place(node):
    return node.lineno, node.col_offset
