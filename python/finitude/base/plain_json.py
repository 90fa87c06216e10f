"""Values as JSON has them: no NaN or Inf, which travel as texts; no half of a character, which is what Python makes of
a path whose bytes are not UTF-8."""

from __future__ import annotations

import json
import math

from . import plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_BYTES = 256 << 20


class Damaged(ValueError):
    """JSON, and not as it was written."""


def number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def text(value: str) -> str:
    """The same text, or one that shows the bytes that are no UTF-8 as \\x.., as a shell reads them in $'...'."""
    try:
        value.encode()
        return value
    except UnicodeEncodeError:
        pass
    try:
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates that represent no byte
        return value.encode("utf-8", "backslashreplace").decode()


def is_plain(value: str) -> bool:
    """Can the engine, which knows UTF-8 only, be given that path?"""
    return text(value) is value


def safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {text(str(k)): safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [safe(v) for v in value]
    return text(value) if isinstance(value, str) else number(value)


def _refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def read(path: str, most: int = MAX_BYTES, is_damaged: Callable[[bytes, Any], bool] | None = None) -> Any:
    """What a file of JSON from elsewhere holds. ValueError where it is none, is nested too deep, is larger than so many
    bytes, or is_damaged(its bytes, what they hold) says so; OSError."""
    with plain_file.opened(path) as f:
        data = plain_file.first(f, most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most} bytes")
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if is_damaged is not None and is_damaged(data, document):
        raise Damaged("it is damaged: its checksum differs")
    return document
