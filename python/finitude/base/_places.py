"""Which files are the user's. One rule for names, source lines and frames (C++ gets the same prefixes)."""

from __future__ import annotations

import contextlib
import os
import sysconfig

import torch

from . import HOME

_PACKAGE = HOME + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = tuple(
    os.path.abspath(p) + os.sep for p in {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"]}
)
_SITE = tuple(os.path.abspath(p) + os.sep for p in {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]})


def library_prefixes() -> list[str]:
    """Folders of library code; the engine treats site-packages below them as the user's."""
    return [_PACKAGE, _TORCH, *_STDLIB]


def is_library(filename: str) -> bool:
    if filename.startswith("<"):
        return True
    with contextlib.suppress(OSError):  # the working directory was removed
        filename = os.path.abspath(filename)
    if filename.endswith("-packages/typing_extensions.py"):
        return True  # deprecated() there wraps functions of torch
    if filename.startswith(_PACKAGE) or filename.startswith(_TORCH):
        return True
    return filename.startswith(_STDLIB) and not filename.startswith(_SITE)
