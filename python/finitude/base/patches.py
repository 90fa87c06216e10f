"""Attributes of modules, classes and objects that are others for a while."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Patches:
    """In order; `undo` puts the originals back, the last one first, and takes away what was not there before."""

    def __init__(self):
        self._saved = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Raises what setattr raises; nothing is to be undone then."""
        there, before = name in owner.__dict__, owner.__dict__.get(name)
        setattr(owner, name, value)
        self._saved.append((owner, name, there, before))

    def undo(self) -> None:
        while self._saved:
            owner, name, there, before = self._saved.pop()
            if there:
                setattr(owner, name, before)
            else:
                delattr(owner, name)
