"""Where a non-finite value has arrived: what an alarm is raised for, found again whenever it is asked."""

import gc

import torch

from . import _native, discover
from .report import number


def of_optimizer(optimizer):
    names, params = discover.names(optimizer), discover.parameters(optimizer)
    sinks = [("gradient", n, p.grad) for n, p in zip(names, params) if p.grad is not None and not _native.is_finite(p.grad)]
    if not sinks:
        sinks = bad_buffers(optimizer)
    return sinks


def bad_buffers(optimizer):
    return [("buffer", n, b) for n, b in discover.persistent_buffers(optimizer)
            if (found := _native.statistics(b)) and found["nan"]]


def watched_optimizers():
    found = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
    return [o for o in found if _native.is_registered(o)]


def pending_window(session):
    """The optimizer, alarm and sinks of a window that holds a non-finite loss or gradient, or None."""
    for optimizer in watched_optimizers():
        window = _native.window(optimizer)
        losses = [l for l in window["losses"] if l["bad"] and l["owned"]]
        sinks = of_optimizer(optimizer)
        if not losses and not sinks:
            continue
        kind, name = ("loss", "loss") if losses else sinks[0][:2]
        alarm = session.new_alarm(optimizer, kind, name)
        alarm["loss"] = number(float(losses[0]["value"])) if losses else None
        alarm["text"] = "loss is not finite" if losses else f"{kind} {name} is not finite"
        alarm["optimizer_ordinal"] = window["ordinal"]
        return optimizer, alarm, sinks
    return None


def loss_in_frames(session, error):
    """A script that checks its loss before backward and gives up: the loss is a variable of the frames that raised."""
    optimizers = watched_optimizers()
    traceback = getattr(error, "__traceback__", None)
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        if discover.is_library(frame.f_code.co_filename):
            continue
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, torch.Tensor) and value.grad_fn is not None and value.numel() == 1 and \
                    not _native.is_finite(value) and optimizers:
                alarm = session.new_alarm(optimizers[0], "loss", name)
                alarm["loss"] = number(float(value.detach()))
                alarm["text"] = f"{name} is not finite and was not given to backward"
                alarm["optimizer_ordinal"] = _native.window(optimizers[0])["ordinal"]
                return optimizers[0], alarm, [("loss", name, value)]
    return None
