"""Operators of other libraries, for a replay: `--library FILE.so` and `--import MODULE`. A person names them; what a
recording says is never loaded."""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXIT_USAGE, EXIT_INPUT = 2, 3
_known = {}  # what was loaded by name: the namespaces that it brought; a second time it registers nothing


class Cannot(Exception):
    """It is not there, or fails as it is loaded."""

    def __init__(self, text: str, code: int = EXIT_INPUT):
        super().__init__(text)
        self.code = code


def _namespaces():
    import torch

    return {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}


def _brought(name, what):
    """The namespaces in which `what` registers operators where there were none."""
    if name not in _known:
        before = _namespaces()
        try:
            what()
        except (Exception, SystemExit) as e:
            raise Cannot(f"{name} cannot be loaded: {type(e).__name__}: {e}") from e
        _known[name] = sorted(_namespaces() - before)
    return _known[name]


def load(path: str) -> Any:
    import torch

    if not os.path.isfile(path):
        raise Cannot(f"{path} is no library: there is no such file")
    path = os.path.abspath(path)  # a bare name would be looked for in the folders of the system
    return _brought(path, lambda: torch.ops.load_library(path))


def import_(module: str) -> Any:
    """As `python -m` would find it: from the working directory, too."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise Cannot(f"--import takes the name of a module, not {module}", EXIT_USAGE)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    return _brought(module, lambda: importlib.import_module(module))


def imported(words: list[str]) -> list[str]:
    """The words of a replay without --import MODULE, which were imported; their namespaces are allowed instead, and a
    script that is written (--script) names them."""
    left, words = [], [*words]
    while words:
        word = words.pop(0)
        name, eq, value = word.partition("=")
        if name != "--import":
            left.append(word)
            continue
        if not eq:
            value = words.pop(0) if words else ""
        left += ["--imported", value]
        for space in import_(value):
            left += ["--allow", space]
    return left
