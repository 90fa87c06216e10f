"""Functions that ask tensors of the program in a healthy run: no TorchFunctionMode of the program's, and no class of
tensors of its own, is to hear of it."""

import functools

import torch


def unseen(function):
    @functools.wraps(function)
    def finitude_unseen(*args, **kwargs):
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return finitude_unseen
