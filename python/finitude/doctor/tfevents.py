"""Scalars of a TensorBoard event file: records with their length and checksums, each a protocol buffer of which a few
fields are read. The file is anyone's: bounded, and what is of another form is skipped."""

from __future__ import annotations

import struct

from ..base.crc32c import masked_crc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

MOST_RECORD = 1 << 20  # bytes; larger ones hold images and are skipped
MOST_FIELDS = 10_000  # of a message
_FLOAT, _DOUBLE = 1, 2  # DataType of a TensorProto


class Damaged(ValueError):
    """It is no event file, or damaged from some record on."""


def records(file: BinaryIO) -> Iterator[bytes]:
    """The data of each record, but of those that are too large. Raises Damaged; ends where the file ends, also within
    a record: its writer may still be at work."""
    while len(head := file.read(12)) == 12:
        size, crc = struct.unpack("<QI", head)
        if masked_crc(head[:8]) != crc:
            raise Damaged("the checksum of a record's length differs")
        if size > MOST_RECORD:
            file.seek(size + 4, 1) if size < 1 << 40 else file.seek(0, 2)
            continue
        data = file.read(size + 4)
        if len(data) < size + 4:
            return
        if masked_crc(data[:size]) != struct.unpack("<I", data[size:])[0]:
            raise Damaged("the checksum of a record differs")
        yield data[:size]


def _varint(data, at):
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut short")
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value & (1 << 64) - 1, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message: integers for varints, bytes for all else. Raises ValueError."""
    at = 0
    for _ in range(MOST_FIELDS):
        if at >= len(data):
            return
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("a field of a kind that is not used")
        if at + size > len(data):
            raise ValueError("a field is cut short")
        yield number, data[at : at + size]
        at += size


def _of_tensor(data):
    """The number of a TensorProto that holds one; None: it holds something else."""
    dtype, content, values = None, b"", b""
    for number, value in fields(data):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (5, 6) and isinstance(value, bytes):
            values += value[: 16 - len(values)]
    form = {_FLOAT: ("<f", 4), _DOUBLE: ("<d", 8)}.get(dtype or 0)
    found = content or values
    return struct.unpack(form[0], found)[0] if form and len(found) == form[1] else None


def _value(data):
    """(tag, number or None)."""
    tag, found = "", None
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = value[:400].decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            found = struct.unpack("<f", value)[0]
        elif number == 8 and isinstance(value, bytes) and found is None:
            found = _of_tensor(value)
    return tag, found


def scalars(data: bytes) -> Iterator[tuple[int, str, float]]:
    """(step, tag, number) of a record. Raises ValueError where it is no event."""
    step, summaries = 0, []
    for number, value in fields(data):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in fields(summary):
            if number == 1 and isinstance(value, bytes):
                tag, found = _value(value)
                if tag and found is not None:
                    yield step, tag, found
