"""Lines of source files, also of those whose path is not UTF-8: the engine and reports write its odd bytes as \\x.., see plain_json.text."""

import linecache
import os
import re


def _real(path):
    if "\\x" not in path or os.path.exists(path):
        return path
    odd = re.sub(rb"\\x([89a-f][0-9a-f])", lambda m: bytes([int(m[1], 16)]), path.encode("utf-8", "surrogateescape"))
    return os.fsdecode(odd)


def line(path, number):
    """Without the blanks around it; "" where there is none."""
    return linecache.getline(_real(path), number).strip()


def lines(path):
    return linecache.getlines(_real(path))


def filled(value):
    """Findings in which the lines stand that the engine, which opens a path as it is written, did not find."""
    if isinstance(value, list):
        return [filled(v) for v in value]
    if not isinstance(value, dict):
        return value
    file = value.get("file")
    if isinstance(file, str) and "\\x" in file and value.get("source") == "":
        value = {**value, "source": line(file, value.get("line") or 0)}
    return {key: filled(v) for key, v in value.items()}
