"""What the tests take from the modules they share is there: a name that is gone is found without the run of that test."""

import ast
import pathlib

TESTS = pathlib.Path(__file__).resolve().parents[1]


def names_of(tree):
    """Those bound at the top of a module, also in its branches."""
    found, open_ = set(), list(tree.body)
    while open_:
        node = open_.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((a.asname or a.name).partition(".")[0] for a in node.names)
        else:
            found.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            open_.extend(n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt))
    return found


def test_names_of_shared_modules_are_there():
    shared = {path.stem: names_of(ast.parse(path.read_text())) for path in TESTS.glob("*.py")}
    assert {"run", "finitude"} <= shared["helpers"]
    missing = []
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        imported = {
            a.name
            for n in ast.walk(tree)
            if isinstance(n, ast.Import)
            for a in n.names
            if a.name in shared and not a.asname
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in shared:
                wanted = [(node.module, a.name) for a in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
                wanted = [(node.value.id, node.attr)]
            else:
                continue
            missing += [
                f"{path.relative_to(TESTS)}:{node.lineno}: {m}.{name}" for m, name in wanted if name not in shared[m]
            ]
    assert not missing, missing
