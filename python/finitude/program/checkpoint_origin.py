"""In the second process: which line of the program loaded the state of an optimizer. No operator need run for that, so
no trace shows."""

from __future__ import annotations

import functools
import weakref

import torch

from ..base import sources
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Findings, Optimizer

_LINES = weakref.WeakKeyDictionary()  # optimizer -> (file, line)
_watched = False


def watch(look: Callable[[Optimizer], Any]) -> None:
    """From here on calls of load_state_dict are noted, and the optimizer is looked at behind each. Only for a process
    of our own: the class is changed."""
    global _watched
    _watched, load = True, torch.optim.Optimizer.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self, *args, **kwargs):
        frame = next(optimizer_members.user_frames(), None)
        if frame is not None:
            _LINES[self] = (frame.f_code.co_filename, frame.f_lineno)
        result = load(self, *args, **kwargs)
        look(self)
        return result

    torch.optim.Optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]


def was_loaded(optimizer: Optimizer) -> bool | None:
    """Has its load_state_dict been called? None: such calls are not watched in this process."""
    return optimizer in _LINES if _watched else None


def add_to(found: Findings, optimizer: Optimizer) -> None:
    """Gives a birth in optimizer state that has no line the one that loaded it."""
    birth = found["births"][0] if found.get("births") else None
    if birth is None or optimizer not in _LINES or birth["file"] or birth["op"] or not birth.get("name"):
        return
    of_parameter = dict(zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)))
    owner, _, key = birth["name"].rpartition(".")
    p = of_parameter.get(owner)
    if p is not None and key in (optimizer.state.get(p) or {}):
        file, line = _LINES[optimizer]
        birth.update({"file": file, "line": line, "source": sources.line(file, line)})
        if (fix := found.get("fix")) and not fix["file"]:
            fix.update({"file": file, "line": line})
