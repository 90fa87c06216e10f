"""Lines of source files, also of those whose path is not UTF-8 (the engine and reports write its odd bytes as \\x..,
see plain_json.text), and of those that lie in no file of their own: in an archive (zipapp, egg), or in what linecache
was given."""

from __future__ import annotations

import linecache
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .types import Around


def _real(path):
    if "\\x" not in path or os.path.exists(path):
        return path
    odd = re.sub(rb"\\x([89a-f][0-9a-f])", lambda m: bytes([int(m[1], 16)]), path.encode("utf-8", "surrogateescape"))
    return os.fsdecode(odd)


def line(path: str, number: int) -> str:
    """Without the blanks around it; "" where there is none."""
    found = lines(path)
    return found[number - 1].strip() if 0 < number <= len(found) else ""


def lines(path: str) -> list[str]:
    path = _real(path)
    found = linecache.getlines(path)
    if found or os.path.exists(path):
        return found
    for module in list(sys.modules.values()):
        # Not getattr: a module of lazy attributes may import what is asked of it.
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and names.get("__file__") == path:
            return linecache.getlines(path, names)  # by what loaded it
    return []


AROUND = 3  # lines of a file before the line of a birth, and after it
_LONGEST = 400


def around(path: str, number: int) -> Around | None:
    """The line with its neighbours: the number of the first of them, and their text; None where there is none."""
    found = lines(path)
    if not 0 < number <= len(found):
        return None
    first = max(1, number - AROUND)
    return {"first": first, "source": "\n".join(one.rstrip()[:_LONGEST] for one in found[first - 1 : number + AROUND])}


# To such data what torch is to tensors: the caller's line says more.
NUMERIC = ("numpy", "scipy", "pandas", "PIL", "pyarrow")


def is_numeric(path: str) -> bool:
    """Is it a file of one of these packages?"""
    return is_of_package(path) and any(f"-packages/{name}/" in path for name in NUMERIC)


def is_of_package(path: str) -> bool:
    """Is it a file of an installed package, which its user cannot be asked to change? As src/record/packages.h has
    it."""
    return "/site-packages/" in path or "/dist-packages/" in path


def filled(value: Any) -> Any:
    """Findings with the lines that the engine, which opens a path as it is written, did not find."""
    if isinstance(value, list):
        return [filled(v) for v in value]
    if not isinstance(value, dict):
        return value
    file = value.get("file")
    if isinstance(file, str) and file and value.get("source") == "" and ("\\x" in file or not os.path.exists(file)):
        value = {**value, "source": line(file, value.get("line") or 0)}
    return {key: filled(v) for key, v in value.items()}
