"""Writes tapes as docs/format/tape.md says, independently of the engine: for tests of what a stranger may send."""

import struct

MASK = (1 << 64) - 1


def _mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def checksum(data):
    lanes, i = [1, 2, 3, 4], 0
    while i + 32 <= len(data):
        words = struct.unpack_from("<4Q", data, i)
        lanes = [((lane ^ w) * 0x9E3779B97F4A7C15 + (lane >> 29)) & MASK for lane, w in zip(lanes, words)]
        i += 32
    total = 0
    for k, lane in enumerate(lanes):
        total ^= _mix((lane + k) & MASK)
    while i < len(data):
        (word,) = struct.unpack("<Q", data[i : i + 8].ljust(8, b"\0"))
        total = (_mix(total ^ word) + i) & MASK
        i += 8
    return _mix(total ^ len(data))


def var(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return var(len(value)) + value


def listed(items):
    items = list(items)
    return var(len(items)) + b"".join(items)


def tensor(storage, sizes, strides=None, offset=0, dtype=6):
    head = (
        bytes([9, 128 if strides is None else 0, dtype])
        + var(storage + 1)
        + var(len(sizes))
        + b"".join(map(var, sizes))
    )
    return head if strides is None else head + b"".join(map(var, strides)) + var(offset)


def sparse(sizes, indices, values):
    """A COO tensor that says it is coalesced; its parts are given as tensors."""
    return b"\x0b" + listed(map(var, sizes)) + b"\1" + indices[1:] + values[1:]


def integer(number):
    return b"\1" + var(number << 1 if number >= 0 else (-number << 1) - 1)


def string(value):
    return b"\6" + text(value)


def values(*items):
    return b"\x0c" + listed(items)


NONE = b"\0"


def given(content):
    """A storage that is an input."""
    return 1, content


def made(size_bytes):
    """A storage that an operator on the tape makes."""
    return 0, size_bytes


def call(operator, args, results):
    return b"\0" + var(operator) + b"\0" + listed(args) + listed(results)


def boolean(value):
    return b"\4" if value else b"\3"


def number(value):
    return b"\2" + struct.pack("<d", value)


def device(name):
    return b"\7" + text(name)


def fill(storage, content, offset=0):
    return b"\2" + var(storage) + var(offset) + text(content)


def tape(operators, storages, entries, outcomes=(), settings=(), devices=(), generators=()):
    """devices: of a tape of version 2, without the CPU; storages then have the number of theirs as a third part (0: the
    CPU). generators: (number of its device, is the default one) of each."""
    data, described = b"", []
    version = 2 if devices else 1
    for origin, content, *where in storages:
        size = content if origin == 0 else len(content)
        head = bytes([origin, 0]) + (bytes(where or [1]) if devices else b"") + var(size) + text("") + text("")
        if origin == 1:
            data = data.ljust(-(-len(data) // 64) * 64, b"\0")
            described.append(head + b"\1" + var(len(data)))
            data += content
        else:
            described.append(head + b"\0")
    body = listed([text(k) + text(v) for k, v in settings])
    if devices:
        body += listed([text(name) for name in devices]) + listed(
            [bytes([number, default]) for number, default in generators]
        )
    body += listed([text(name) + text(overload) for name, overload in operators])
    body += listed(described) + listed(entries)
    body += listed(
        [text("value") + text(f"x{i or ''}") + struct.pack("<Q", 0) + value for i, value in enumerate(outcomes)]
    ) + listed([])
    header = b"FitTape\n" + struct.pack(
        "<IIQQQQQ", version, 64, len(body), checksum(body), len(data), checksum(data), 0
    )
    file = header + struct.pack("<Q", checksum(header)) + body
    return file.ljust(-(-len(file) // 64) * 64, b"\0") + data if data else file
