"""Metamorphic variants of a case: local names renamed, blank and comment lines inserted; the truth moves along."""
import ast
import builtins
import random
import shutil
from dataclasses import replace
from pathlib import Path

REMARKS = ("# next", "# see the notes", "# unchanged since the first version", "# shapes as above")


def bound_names(tree):
    """Names that the file itself binds: assigned, arguments, functions, classes (methods and class attributes not)."""
    names, fixed = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            fixed.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            fixed.update(node.names)
        elif isinstance(node, ast.keyword) and node.arg:
            fixed.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            fixed.add(node.name)
        elif isinstance(node, ast.JoinedStr):      # positions inside f-strings are not those of the file before 3.12
            fixed.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                fixed.update(n.id for n in ast.walk(item) if isinstance(item, (ast.Assign, ast.AnnAssign))
                             and isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
                if isinstance(item, ast.FunctionDef):
                    fixed.add(item.name)
    private = {name for name in names if name.startswith("__")}
    return names - fixed - private - {"self", "cls", "ctx", "closure"} - set(dir(builtins))


def rename(source, rng):
    """The source with its own names replaced; no line moves."""
    tree = ast.parse(source)
    taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    fresh = {}
    for number, name in enumerate(sorted(bound_names(tree))):
        new = f"{rng.choice('bdfghjkmnpqrtvwxz')}{rng.choice('aeiou')}{number}"
        while new in taken:
            new += "_"
        fresh[name] = new
    lines = [line.encode() for line in source.split("\n")]
    edits = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in fresh:
            edits.add((node.lineno, node.col_offset, node.id))
        elif isinstance(node, ast.arg) and node.arg in fresh:
            edits.add((node.lineno, node.col_offset, node.arg))
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in fresh:
            column = lines[node.lineno - 1].index(node.name.encode(), node.col_offset + 3)
            edits.add((node.lineno, column, node.name))
    for line, column, name in sorted(edits, reverse=True):
        text = lines[line - 1]
        old = name.encode()
        if text[column:column + len(old)] != old:
            raise ValueError(f"line {line}: {name} is not at column {column}")
        lines[line - 1] = text[:column] + fresh[name].encode() + text[column + len(old):]
    return b"\n".join(lines).decode()


def insert_lines(source, rng):
    """Blank and comment lines before statements; returns the new source and {old line: new line}."""
    starts = {node.lineno: node.col_offset for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)}
    out, moved = [], {}
    for number, text in enumerate(source.split("\n"), 1):
        if number in starts and rng.random() < 0.4:
            for _ in range(rng.randint(1, 3)):
                out.append("" if rng.random() < 0.5 else " " * starts[number] + rng.choice(REMARKS))
        out.append(text)
        moved[number] = len(out)
    return "\n".join(out), moved


def variant(case, folder, seed=0):
    """Writes a variant of the case below `folder` and returns it as a case of its own."""
    rng = random.Random(f"{seed}/{case.slug}")
    source, moved = insert_lines(rename(case.script.read_text(), rng), rng)
    compile(source, str(case.script), "exec")
    place = Path(folder) / case.slug
    shutil.copytree(case.script.parent, place, ignore=shutil.ignore_patterns("__pycache__"))
    script = place / case.script.name
    script.write_text(source)
    return replace(case, script=script, lines=frozenset(moved[line] for line in case.lines))
