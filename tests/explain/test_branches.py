"""Which divisions of an optimizer's step run in each step, as its source says."""

import ast
import textwrap

import pytest

from finitude.report.branches import Branches

STEPS = {
    "in loops": ("for p in ps:\n  with torch.no_grad():\n    p / v", True),
    "in a condition": ("if a:\n  p / v", False),
    "as a condition": ("if p / v > 1:\n  return", True),
    "in an else": ("if a:\n  pass\nelse:\n  p / v", False),
    "of a choice": ("x = p / v if a else p", False),
    "with a gradient": ("if p.grad is not None:\n  p / v", True),
    "without a gradient": ("if p.grad is None:\n  p / v", False),
    "behind a jump": ("for p in ps:\n  if a:\n    continue\n  p / v", False),
    "behind a jump without a gradient": ("for p in ps:\n  if p.grad is None:\n    continue\n  p / v", True),
    "before a jump": ("p / v\nif a:\n  return", True),
    "in a try": ("try:\n  p / v\nexcept E:\n  pass", True),
    "in a handler": ("try:\n  pass\nexcept E:\n  p / v", False),
    "in a helper": ("self.update(p)\ndef update(p):\n  p / v", True),
    "in a helper of a branch": ("if a:\n  self.update(p)\ndef update(p):\n  p / v", False),
    "in a helper that nobody calls": ("pass\ndef update(p):\n  p / v", False),
    "in one that calls itself": ("pass\ndef update(p):\n  update(p)\n  p / v", False),
}


@pytest.mark.fast
@pytest.mark.parametrize(("body", "runs"), STEPS.values(), ids=STEPS)
def test_a_division_runs_in_each_step(body, runs):
    body, helper, rest = body.partition("\ndef ")
    tree = ast.parse("def step(self):\n" + textwrap.indent(body, " ") + helper + rest)
    (division,) = [n for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    assert Branches(tree).always_runs(division) == runs, body
