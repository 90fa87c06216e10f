"""An event file of TensorBoard. It needs no package: records of a few fields, whose reader is doctor/tfevents.py."""

from __future__ import annotations

import os
import struct

from ..base.crc32c import masked_crc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .points import Process

_BYTES, _FIXED64, _FIXED32 = 2, 1, 5  # kinds of fields


def _varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number, kind, data):
    size = _varint(len(data)) if kind == _BYTES else b""
    return _varint(number << 3 | kind) + size + data


def _record(data):
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", masked_crc(size)) + data + struct.pack("<I", masked_crc(data))


def _event(seconds, step, *rest):
    return _field(1, _FIXED64, struct.pack("<d", seconds)) + _varint(2 << 3) + _varint(step) + b"".join(rest)


def _scalar(tag, value, step, seconds):
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond float32
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    summary = _field(1, _BYTES, tag) + _field(2, _FIXED32, packed)
    return _record(_event(seconds, step, _field(5, _BYTES, _field(1, _BYTES, summary))))


def write(directory: str, run: str, processes: Sequence[Process]) -> str:
    """The last value of each point, in a folder for each rank below the directory. Returns the directory. OSError."""
    for process in processes:
        folder = os.path.join(directory, run if process.is_alone else f"{run}-rank{process.rank}")
        os.makedirs(folder, exist_ok=True)
        # One name for one process of a run: written again, it replaces what was there.
        with open(os.path.join(folder, "events.out.tfevents.0.finitude"), "wb") as out:
            out.write(_record(_event(0.0, 0, _field(3, _BYTES, b"brain.Event:2"))))
            for series, points in process.points():
                tag = series.name().encode()
                for p in points:
                    if p.last is not None:
                        out.write(_scalar(tag, p.last, p.last_step, p.time or 0.0))
    return directory
