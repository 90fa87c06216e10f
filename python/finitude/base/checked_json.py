"""The checksum that a capsule.json has of itself, as src/capture/own_checksum.cpp makes it. Without the engine: a
launcher writes one for its ranks."""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_MASK = (1 << 64) - 1
_SUM, _HAS_SUM = "checksum", "has_checksum"


def _mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def checksum(data: bytes) -> int:
    """That of src/base/checksum.h."""
    lanes, whole = [1, 2, 3, 4], len(data) & ~31
    for words in struct.iter_unpack("<4Q", data[:whole]):
        lanes = [((lane ^ word) * 0x9E3779B97F4A7C15 + (lane >> 29)) & _MASK for lane, word in zip(lanes, words)]
    total = 0
    for i, lane in enumerate(lanes):
        total ^= _mix((lane + i) & _MASK)
    for at in range(whole, len(data), 8):
        total = (_mix(total ^ int.from_bytes(data[at : at + 8], "little")) + at) & _MASK
    return _mix(total ^ len(data))


def _end_of(before):
    return f',\n "{_SUM}": "{checksum(before):016x}"\n}}\n'.encode()


def text_of(document: Mapping[str, Any]) -> bytes:
    """The bytes of a file that holds the document, a dict."""
    plain = {key: value for key, value in document.items() if key != _SUM}
    before = json.dumps({**plain, _HAS_SUM: True}, indent=1, allow_nan=False).encode()[:-2]
    return before + _end_of(before)


def is_damaged(data: bytes, document: Any) -> bool:
    """Whether these bytes, which hold the document, are not as they were written. One of an earlier version has no
    checksum."""
    if not isinstance(document, dict) or not {_SUM, _HAS_SUM} & document.keys():
        return False
    end = len(_end_of(b""))
    return data[-end:] != _end_of(data[:-end])
