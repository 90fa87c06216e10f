"""Jupyter: `%load_ext finitude` watches every cell from then on; the report of a bad step is shown below its cell.

`finitude.watch(...)` in a cell needs no extension and shows its reports in the same way.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base.types import Watch

_watch: Watch | None = None


def load(ipython: Any) -> None:
    """%load_ext finitude"""
    global _watch
    from . import api

    if _watch is None:
        _watch = api.watch()


def unload(ipython: Any) -> None:
    """%unload_ext finitude"""
    global _watch
    if _watch is not None:
        _watch.close()
        _watch = None
