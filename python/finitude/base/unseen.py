"""Functions that ask tensors of the program in a healthy run: no TorchFunctionMode of the program's, and no class of
tensors of its own, is to hear of it."""

from __future__ import annotations

import functools

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .types import P, R


def unseen(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def finitude_unseen(*args, **kwargs):
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return finitude_unseen
