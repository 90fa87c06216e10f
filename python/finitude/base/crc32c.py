"""The checksum of the records of a TensorBoard event file."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78


def _made_table():
    """Of CRC-32C, the lowest bit first."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _made_table()


def masked_crc(data: bytes) -> int:
    """The checksum that follows the length and the data of a record."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
