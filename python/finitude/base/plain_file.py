"""Opens files from elsewhere: a pipe would be waited for, a device has no end, and neither is what a run leaves."""

from __future__ import annotations

import errno
import os
import stat

PART = 1 << 20

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


def _check(found, path):
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", path)


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, to read its bytes. OSError also where it is no plain file, nor a link to one."""
    _check(os.stat(path), path)  # some devices act when they are opened
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def first(file: BinaryIO, count: int) -> bytes:
    """So many bytes, or all there are. To ask for them at once takes memory for so many, however short the file is."""
    parts = []
    while count > 0 and (part := file.read(min(count, PART))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def head(path: str | os.PathLike[str], count: int) -> bytes:
    """Its first bytes; none where it cannot be read."""
    try:
        with opened(path) as f:
            return first(f, count)
    except (OSError, ValueError):
        return b""
