"""Where in the user's program is this? Found by walking the frames of Python, not by the recorder that is being
tested."""

from __future__ import annotations

import os
import sys

import torch

from ..base import HOME, _places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = HOME + os.sep
_OPTIM = os.path.dirname(os.path.abspath(torch.optim.__file__)) + os.sep
_ENGINE = (torch.autograd.backward.__code__, torch.autograd.grad.__code__)
_MODULE_CALL = torch.nn.Module._call_impl.__code__


class Where:
    """file, line and module as a report names them; ours: the recorder itself called the op; engine: a node of backward
    did, and no line of the user's; optimizer: torch.optim did."""

    def __init__(self, file="", line=0, module="", ours=False, engine=False, optimizer=False):
        self.file, self.line, self.module, self.ours, self.engine, self.optimizer = (
            file,
            line,
            module,
            ours,
            engine,
            optimizer,
        )


def _named(modules):
    """ "Classifier.head.0" of the modules that are running, innermost first."""
    root, name = modules[-1], type(modules[-1]).__name__
    for found, module in root.named_modules():
        if module is modules[0]:
            return f"{name}.{found}" if found else name
    return name


def here(depth: int = 1) -> Where:
    """The innermost line of the user's, seen from `depth` frames above this call."""
    frame: FrameType | None = sys._getframe()
    found, modules = None, []
    engine = optimizer = False
    for _ in range(depth + 1):  # a thread of the engine has no frames but ours
        frame = frame and frame.f_back
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if code is _MODULE_CALL:
            modules.append(frame.f_locals["self"])
        elif found is None:
            if (
                file.startswith(_PACKAGE) and code.co_name != "_next_data"
            ):  # around torch's own of that name: see inside.py
                return Where(ours=True)
            if code in _ENGINE:
                engine = True
            elif file.startswith(_OPTIM):
                optimizer = True
            elif not _places.is_library(file):
                found = os.path.abspath(file), frame.f_lineno
        frame = frame.f_back
    if found is None:
        return Where(engine=engine, optimizer=optimizer)
    return Where(*found, _named(modules) if modules else "", engine=engine, optimizer=optimizer)
