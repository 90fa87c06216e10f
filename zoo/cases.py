"""The cases on disk: a folder with train.py and expected.json each, and where in the source the truth lies."""

import ast
import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
SETS = {
    "zoo": "the zoo",
    "acceptance": "acceptance scenarios",
    "idiom": "false-alarm idioms",
    "twin": "their twins",
    "own-first": "own, first half",
    "own-second": "own, second half",
}


@dataclass
class Case:
    id: str
    slug: str
    script: Path
    expected: dict
    lines: frozenset  # lines of the birth statement (of train.py, or of its variant)

    @property
    def set(self):
        """Which collection the case belongs to; see SETS."""
        return self.expected.get("set", "zoo")

    @property
    def positive(self):
        return self.expected["expect"] != "silent"


def header_span(node):
    """First and last line of a statement; of a compound one, of its header only."""
    last = node.end_lineno
    for name in ("body", "cases"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block:
            last = max(node.lineno, block[0].lineno - 1)
            break
    return node.lineno, last


def statement_lines(source, text):
    """The lines of the innermost statement that contains `text`, which must occur exactly once."""
    if source.count(text) != 1:
        raise ValueError(f"occurs {source.count(text)} times, not once: {text!r}")
    first = source[: source.index(text)].count("\n") + 1
    last = first + text.count("\n")
    spans = [header_span(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    holding = [span for span in spans if span[0] <= first and last <= span[1]]
    if not holding:
        raise ValueError(f"is not part of one statement: {text!r}")
    low, high = min(holding, key=lambda span: span[1] - span[0])
    return frozenset(range(low, high + 1))


def accepted_lines(source, expected):
    texts = [expected[key] for key in ("line_match",) if key in expected] + expected.get("line_also", [])
    return frozenset().union(*(statement_lines(source, text) for text in texts))


def load(root=ROOT):
    """All cases below `root`, sorted by kind and number."""
    found = []
    for file in root.glob("*/*/expected.json"):
        expected = json.loads(file.read_text())
        script = file.with_name("train.py")
        try:
            lines = accepted_lines(script.read_text(), expected)
        except ValueError as problem:
            raise ValueError(f"{file}: {problem}") from None
        found.append(Case(expected["id"], file.parent.name, script, expected, lines))

    def order(case):
        digits = "".join(c for c in case.id[1:] if c.isdigit())
        return not case.positive, list(SETS).index(case.set), int(digits or 0), case.slug

    return sorted(found, key=order)


def choose(text="", sets=""):
    """The cases whose folder name contains `text`, of the sets named in a comma-separated list (all, if it is
    empty)."""
    wanted = sets.split(",") if sets else list(SETS)
    return [case for case in load() if text in case.slug and case.set in wanted]
