"""The engines that this installation holds: one for each minor version of torch, _engines/torch2_13 and its like.

Between minor versions torch's C++ classes change their layout: an engine may load with another and then read wrong
memory. So the version is read before anything is loaded, and without importing torch."""

from __future__ import annotations

import os
import re
import sys

from . import HOME, compat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def homes() -> list[str]:
    """The folders of the package. There are two in an editable install: the source tree, and what was built."""
    package = sys.modules.get(__name__.partition(".")[0])
    return [HOME, *(path for path in getattr(package, "__path__", ()) if path != HOME)]


def folders() -> dict[tuple[int, int], str]:
    """{torch minor: the folder of its engine}"""
    found: dict[tuple[int, int], str] = {}
    for home in homes():
        try:
            names = os.listdir(os.path.join(home, "_engines"))
        except OSError:
            continue
        for name in names:
            if parts := re.fullmatch(r"torch(\d+)_(\d+)", name):
                found.setdefault((int(parts[1]), int(parts[2])), os.path.join(home, "_engines", name))
    return found


def torch_here() -> str:
    """The version of the torch that is imported or would be; "" where there is none that says it."""
    if torch := sys.modules.get("torch"):
        return str(getattr(torch, "__version__", ""))
    from importlib import util

    try:
        spec = util.find_spec("torch")
    except (ImportError, ValueError):
        return ""
    for folder in (spec.submodule_search_locations if spec else None) or ():
        try:
            with open(os.path.join(folder, "version.py"), encoding="utf-8", errors="replace") as f:
                if found := re.search(r"^__version__ *= *['\"]([^'\"]*)", f.read(), re.MULTILINE):
                    return found[1]
        except OSError:
            continue
    return ""


def why_none(torch_text: str) -> str | None:
    """Why no engine here may be loaded with this torch, in one line; None if one may."""
    if why := compat.out_of_range(torch_text):
        return why
    held = folders()
    if compat.torch_version(torch_text) in held:
        return None
    if not held:
        return "no engine is built: this is a source tree (pip install .)"
    wanted = f"this installation was built for torch {_listed(held)}"
    return f"{wanted}, and this is torch {torch_text} (install finitude again)"


def _listed(held: Iterable[tuple[int, int]]) -> str:
    names = [f"{major}.{minor}" for major, minor in sorted(held)]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
