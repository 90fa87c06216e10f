#!/usr/bin/env python3
"""Finds the functions and methods of python/finitude that another module uses and that are not fully annotated.

    python tools/types_check.py [--list] [ROOT]      one line per function; exit code 1 if there are more than MOST

A function crosses a module where another module imports its name, or names it as an attribute of the imported module; a
method where another module names an attribute of that name, of whatever object; `__init__` where another module names the
class. Annotated means every parameter but self and cls, and what is returned (`__init__` returns None).
"""

import ast
import dataclasses
import pathlib
import sys

MOST = 0  # may only go down


@dataclasses.dataclass(frozen=True)
class Function:
    module: str  # relative to python/finitude: "base.say"
    path: pathlib.Path
    name: str  # "say", or "Config.load"
    node: ast.FunctionDef

    @property
    def lacks(self):
        """Names of what has no annotation; "return" is one of them."""
        a = self.node.args
        given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
        if "." in self.name and not _is_static(self.node):
            given = given[1:]
        lacks = [p.arg for p in given if p.annotation is None]
        if self.node.returns is None and self.node.name != "__init__":
            lacks.append("return")
        return lacks


def _is_static(node):
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)


def _functions(module, path, tree):
    """Those at the top of the module and of its classes."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(module, path, node.name, node)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield Function(module, path, f"{node.name}.{inner.name}", inner)


def _uses(module, tree, modules):
    """({(module, name)} that are imported or named through an imported module, {attribute names of anything else})."""
    is_package = module in modules and modules[module].name == "__init__.py"
    package = module.split(".") if is_package else module.split(".")[:-1]
    package = [p for p in package if p]
    imported, names, attributes = {}, set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "finitude"):
            if node.level:
                base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            else:
                base = node.module.split(".")[1:]
            base = ".".join(filter(None, base))
            for alias in node.names:
                whole = f"{base}.{alias.name}" if base else alias.name
                if whole in modules:
                    imported[alias.asname or alias.name] = whole
                else:
                    names.add((base, alias.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in imported:
                names.add((imported[node.value.id], node.attr))
            else:
                attributes.add(node.attr)
    return names, attributes


def crossing(root):
    """Every function and method that another module uses, in the order of the tree."""
    base = pathlib.Path(root) / "python/finitude"
    paths = {}
    for path in sorted(p for p in base.rglob("*.py") if "_hook" not in p.parts):  # that keeps to what old Pythons read
        parts = path.relative_to(base).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    trees = {module: ast.parse(path.read_bytes()) for module, path in paths.items()}
    uses = {module: _uses(module, tree, paths) for module, tree in trees.items()}
    for module, tree in trees.items():
        others = [use for other, use in uses.items() if other != module]
        names = set().union(*(n for n, _ in others))
        attributes = set().union(*(a for _, a in others))
        for function in _functions(module, paths[module], tree):
            owner, _, name = function.name.rpartition(".")
            if name == "__init__":
                used = (module, owner) in names
            elif owner:
                used = name in attributes or (module, owner) in names and (module, name) in names
            else:
                used = (module, name) in names
            if used or (module in PUBLIC and not function.name.startswith("_") and "._" not in function.name):
                yield function


PUBLIC = {"", "api", "errors", "rules", "notebook", "integrations.accelerate"}  # whatever a user may call


def main(arguments):
    listing = "--list" in arguments
    given = [a for a in arguments if a != "--list"]
    root = pathlib.Path(given[0] if given else pathlib.Path(__file__).parents[1])
    every = list(crossing(root))
    lacking = [f for f in every if f.lacks]
    if listing or len(lacking) > MOST:
        for f in lacking:
            print(f"{f.path.relative_to(root)}:{f.node.lineno}: {f.name} lacks types of {', '.join(f.lacks)}")
    print(f"{len(every) - len(lacking)} of {len(every)} functions that cross a module are annotated", end="")
    print(f"; at most {MOST} may lack types" if len(lacking) > MOST else "")
    if len(lacking) < MOST:
        print(f"{sys.argv[0]}: lower MOST to {len(lacking)}")
    return len(lacking) > MOST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
