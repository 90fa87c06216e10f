"""Packed capsules, for what needs the folder of one. The program finitude-offline packs, unpacks and checks them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile

from ..base import plain_file, programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ABOUT = "capsule.json"
MOST_ABOUT = 64 << 20  # bytes of capsule.json

_scratch = []  # folders of `unpacked`


def clear() -> None:
    """Before a process ends that cannot continue: removes what was unpacked for it."""
    for folder in _scratch:
        shutil.rmtree(folder, ignore_errors=True)


class Refused(Exception):
    """Why a file is not taken, with its name."""


def is_packed(path: str) -> bool:
    return plain_file.head(path, 4) == b"PK\x03\x04"


@contextlib.contextmanager
def unpacked(path: str) -> Iterator[str]:
    """The folder in place of a packed capsule, for as long; else the path itself. May raise Refused."""
    if not (os.path.isfile(path) and is_packed(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="finitude-") as scratch:
        _scratch.append(scratch)
        folder = os.path.join(scratch, "capsule")
        command = ["finitude", "unpack", "--", path, folder]
        program = programs.path_of(programs.OFFLINE)
        try:
            done = subprocess.run(command, executable=program, stdin=subprocess.DEVNULL, capture_output=True)
        except OSError as e:
            raise Refused(f"{path} cannot be unpacked: cannot start {program}: {e.strerror}") from None
        if done.returncode:
            reason = done.stderr.decode("utf-8", "replace").strip().removeprefix("finitude: ")
            raise Refused(reason or f"{path} cannot be unpacked")
        yield folder
