"""Metamorphic variants of a case: names renamed, lines moved, seeds and sizes changed; the truth moves along."""

import ast
import builtins
import random
import shutil
from dataclasses import replace
from pathlib import Path

REMARKS = ("# next", "# see the notes", "# unchanged since the first version", "# shapes as above")
SEEDERS = ("manual_seed", "manual_seed_all", "seed", "default_rng", "RandomState", "Random")


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
        elif isinstance(node, ast.JoinedStr):  # positions inside f-strings are not those of the file before 3.12
            fixed.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                fixed.update(
                    n.id
                    for n in ast.walk(item)
                    if isinstance(item, (ast.Assign, ast.AnnAssign))
                    and isinstance(n, ast.Name)
                    and isinstance(n.ctx, ast.Store)
                )
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
        if text[column : column + len(old)] != old:
            raise ValueError(f"line {line}: {name} is not at column {column}")
        lines[line - 1] = text[:column] + fresh[name].encode() + text[column + len(old) :]
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


def seed_arguments(tree):
    """The integer constants that seed a generator, however it is reached: torch.manual_seed(0), default_rng(seed=3)."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name not in SEEDERS:
            continue
        for node in [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("seed", "s", "x", "a"))]:
            if isinstance(node, ast.Constant) and type(node.value) is int:
                yield node


def change_seeds(source, draw):
    """The source with every integer seed replaced by draw(old seed); no line moves."""
    lines = [line.encode() for line in source.split("\n")]
    places = {(n.lineno, n.col_offset, n.end_col_offset, n.value) for n in seed_arguments(ast.parse(source))}
    for line, first, end, value in sorted(places, reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:first] + str(draw(value)).encode() + text[end:]
    return b"\n".join(lines).decode()


def change_sizes(source, replacements):
    """The source with each [old, new] or [old, new, times] applied to the original text; no line moves."""
    spans = []
    for old, new, *times in replacements:
        wanted, found = (times or [1])[0], source.count(old)
        if found != wanted:
            raise ValueError(f"occurs {found} times, not {wanted}: {old!r}")
        if old == new or old.count("\n") != new.count("\n"):
            raise ValueError(f"changes nothing, or moves lines: {old!r}")
        at = 0
        for _ in range(wanted):
            first = source.index(old, at)
            at = first + len(old)
            spans.append((first, at, new))
    out, done = [], 0
    for first, end, new in sorted(spans):
        if first < done:
            raise ValueError(f"overlaps another replacement: {source[first:end]!r}")
        out += [source[done:first], new]
        done = end
    return "".join(out) + source[done:]


def vary(case, seed=0):
    """Source and expectation of the case with its seeds and sizes changed as its `vary` key allows; no line moves."""
    declared, source = case.expected.get("vary", {}), case.script.read_text()
    if isinstance(declared.get("sizes"), list):
        source = change_sizes(source, declared["sizes"])
    wish = declared.get("seed")
    if wish is True:
        more = random.Random(f"seed/{seed}/{case.slug}").randint(1, 9999)
        source = change_seeds(source, lambda old: old + more)
    elif type(wish) is int:
        source = change_seeds(source, lambda old: wish)
    return source, {**case.expected, **{key: declared[key] for key in ("step", "rows") if key in declared}}


def write(case, folder, source, **changed):
    """A case like this one with another source, its other files copied along."""
    compile(source, str(case.script), "exec")
    place = Path(folder) / case.slug
    shutil.copytree(case.script.parent, place, ignore=shutil.ignore_patterns("__pycache__"))
    script = place / case.script.name
    script.write_text(source)
    return replace(case, script=script, **changed)


def plain_variant(case, folder, seed=0):
    """Only seeds and sizes changed: what `zoo.plain` looks at."""
    source, expected = vary(case, seed)
    return write(case, folder, source, expected=expected)


def variant(case, folder, seed=0):
    """Writes a variant of the case below `folder` and returns it as a case of its own."""
    rng = random.Random(f"{seed}/{case.slug}")
    source, expected = vary(case, seed)
    source, moved = insert_lines(rename(source, rng), rng)
    return write(case, folder, source, expected=expected, lines=frozenset(moved[line] for line in case.lines))
