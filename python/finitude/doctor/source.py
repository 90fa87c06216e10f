"""The user's script as text: parsed with `ast`, with names resolved through its imports. Never imported, never
evaluated."""

from __future__ import annotations

import ast
import fnmatch
import os

from ..base import plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_FILES, MAX_BYTES = 300, 4 << 20
AUTOCAST = (
    "torch.autocast",
    "torch.amp.autocast",
    "torch.amp.autocast_mode.autocast",
    "torch.cuda.amp.autocast",
    "torch.cuda.amp.autocast_mode.autocast",
    "torch.cpu.amp.autocast",
)
SCALERS = (
    "torch.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.cpu.amp.GradScaler",
    "torch.GradScaler",
)
HALF = {"torch.float16": "float16", "torch.half": "float16", "torch.bfloat16": "bfloat16"}


class Unreadable(Exception):
    """The script cannot be read or is not Python."""


class Call:
    """One call in the source. name: dotted, through the file's imports ("torch.log"); method: its last part."""

    def __init__(self, file, node):
        self.file, self.node = file, node
        self.name = file.dotted(node.func)
        self.method = node.func.attr if isinstance(node.func, ast.Attribute) else self.name
        self.at = (file.path, node.lineno)

    @property
    def receiver(self) -> str:
        """Source text of what the method is called on, or ""."""
        return ast.unparse(self.node.func.value) if isinstance(self.node.func, ast.Attribute) else ""

    def argument(self, keyword: str, position: int | None = None) -> ast.expr | None:
        """The expression given for a parameter, or None."""
        for k in self.node.keywords:
            if k.arg == keyword:
                return k.value
        if position is not None and position < len(self.node.args):
            found = self.node.args[position]
            return None if isinstance(found, ast.Starred) else found
        return None

    def parents(self) -> Iterator[ast.AST]:
        return self.file.parents(self.node)

    @property
    def function(self) -> ast.AST:
        """The innermost function around it, or the module."""
        return next(
            p for p in self.parents() if isinstance(p, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module))
        )

    def is_conditional(self) -> bool:
        """Below an `if` (but for `if __name__ == "__main__"`), a conditional expression or an exception handler."""
        return any(
            isinstance(p, ast.ExceptHandler)
            or isinstance(p, (ast.If, ast.IfExp))
            and "__name__" not in ast.unparse(p.test)
            for p in self.parents()
        )


class File:
    def __init__(self, path, text, tree):
        self.path, self.text, self.tree = path, text, tree
        self._parent, self.names, self.assigned, self.imports = {}, {}, {}, []
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self._parent[child] = node
        for node in ast.walk(tree):
            self._enter(node)
        self.calls = sorted(
            (Call(self, n) for n in ast.walk(tree) if isinstance(n, ast.Call)),
            key=lambda c: (c.node.end_lineno, c.node.end_col_offset),
        )

    def _enter(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                self.imports.append((0, alias.name, ()))
        elif isinstance(node, ast.ImportFrom):
            self.imports.append((node.level, node.module or "", tuple(a.name for a in node.names)))
            for alias in node.names:
                if not node.level:
                    self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.assigned.setdefault(ast.unparse(target), []).append(node)

    def parents(self, node: Any) -> Iterator[ast.AST]:
        while (node := self._parent.get(node)) is not None:
            yield node

    def dotted(self, node: ast.AST) -> str:
        """ "torch.nn.functional.log_softmax" for F.log_softmax; "" for what is not a chain of names."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.names.get(node.id, node.id), *reversed(parts)])

    def value(self, node: Any) -> Any:
        """The expression itself, or the only one that the variable it names is ever set to in this file."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = self.assigned.get(ast.unparse(node), [])
            if len(found) == 1:
                return found[0].value
        return node

    def half_dtype(self, node):
        """ "float16" or "bfloat16" where the expression is certainly that, else None."""
        if node is None:
            return None
        return HALF.get(self.dotted(node)) or HALF.get(self.dotted(self.value(node)))


class Source:
    """The script and the modules that it imports from its own folder."""

    def __init__(self, files, left_out=()):
        self.files, self.left_out = files, list(left_out)

    def calls(self, *patterns: str) -> list[Call]:
        """Calls whose dotted name matches one of the patterns (as file names do: "torch.*"), in order of execution in a
        line."""
        return [c for f in self.files for c in f.calls if any(fnmatch.fnmatchcase(c.name, p) for p in patterns)]

    def methods(self, *names: str) -> list[Call]:
        """Calls of methods by name, whatever they are called on."""
        return [
            c
            for f in self.files
            for c in f.calls
            if isinstance(c.node.func, ast.Attribute) and c.node.func.attr in names
        ]

    def assignments(self, *names: str) -> list[tuple[Any, tuple[str, int]]]:
        """(value, (path, line)) of every assignment to these dotted names."""
        out = []
        for f in self.files:
            for nodes in f.assigned.values():
                for node in nodes:
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        if f.dotted(target) in names:
                            out.append((node.value, (f.path, node.lineno)))
        return out

    def autocasts(self) -> list[tuple[Call, str | None]]:
        """(call, dtype or None) of every autocast that is not certainly off."""
        out: list[tuple[Call, str | None]] = []
        for c in self.calls(*AUTOCAST):
            on = c.argument("enabled")
            if isinstance(on, ast.Constant) and not on.value:
                continue
            given = c.argument("dtype", 0 if ".cuda.amp" in c.name or ".cpu.amp" in c.name else 1)
            if ".cuda.amp" in c.name and given is None:
                out.append((c, "float16"))  # its default
            else:
                out.append((c, c.file.half_dtype(given)))
        return out

    def scalers(self) -> list[tuple[Call, set[str]]]:
        """(call, names that hold it) of every GradScaler that is not certainly off."""
        out = []
        for c in self.calls(*SCALERS):
            on = c.argument("enabled")
            if isinstance(on, ast.Constant) and not on.value:
                continue
            names = {n for n, nodes in c.file.assigned.items() if any(a.value is c.node for a in nodes)}
            out.append((c, names))
        return out

    def says(self, text: str) -> bool:
        return any(text in f.text for f in self.files)

    def trains(self) -> bool:
        return bool(self.methods("backward"))


def _read(path):
    try:
        with plain_file.opened(path) as f:
            data = f.read(MAX_BYTES + 1)
    except OSError as e:
        raise Unreadable(f"cannot read {path}: {e.strerror}") from None
    if len(data) > MAX_BYTES:
        raise Unreadable(f"{path} is larger than {MAX_BYTES} bytes; this is not a script")
    try:
        tree = ast.parse(data, path)
        return File(path, data.decode("utf-8", "replace"), tree)
    except SyntaxError as e:
        raise Unreadable(f"{path}:{e.lineno or 0}: not Python: {e.msg}") from None
    except (ValueError, RecursionError, MemoryError) as e:
        raise Unreadable(f"{path} is not Python: {e}") from None


def _modules(file, root):
    """Paths of what the file imports from the folder of the script."""
    for level, module, names in file.imports:
        base = root
        if level:
            base = os.path.dirname(file.path)
            for _ in range(level - 1):
                base = os.path.dirname(base)
        parts = [p for p in module.split(".") if p]
        for tail in [parts, *([*parts, n] for n in names)]:
            path = os.path.join(base, *tail)
            for found in (path + ".py", os.path.join(path, "__init__.py")):
                if tail and os.path.isfile(found) and os.path.abspath(found).startswith(root + os.sep):
                    yield os.path.abspath(found)


def read(path: str) -> Source:
    """Raises Unreadable for the script itself; of what it imports, files that cannot be read are skipped."""
    path = os.path.abspath(path)
    root = os.path.dirname(path)
    files, seen, left_out = [_read(path)], {path}, []
    for file in files:  # grows
        for found in _modules(file, root):
            if found in seen or len(files) >= MAX_FILES:
                continue
            seen.add(found)
            try:
                files.append(_read(found))
            except Unreadable as e:
                left_out.append(str(e))
    return Source(files, left_out)
