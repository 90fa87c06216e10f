"""Which words the program finitude-offline answers. Nothing large is imported here: it decides before anything else."""

from __future__ import annotations

import os

from ..base import plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS = ("report", "dump", "list")
PACKED = b"PK\x03\x04"
TAPE = b"FitT"


def is_answered(words: Sequence[str]) -> bool:
    """One of WORDS, or `diff` of two traces. Packed capsules are unpacked in Python, and tapes need torch."""
    if words[:1] == ["diff"]:
        paths = [word for word in words[1:] if word != "--json"]
        return len(paths) == 2 and all(map(_is_trace, paths))
    return bool(words) and words[0] in WORDS and not any(plain_file.head(w, 4) == PACKED for w in words[1:])


def _is_trace(path):
    if path.startswith("-") or os.path.basename(path) == "capsule.json":
        return False
    if os.path.isdir(path):
        return not os.path.exists(os.path.join(path, "capsule.json"))
    return plain_file.head(path, 4) not in (PACKED, TAPE)
