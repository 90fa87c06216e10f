"""In a second process: torch's own trace of a device is handed to the engine, which learns from it what orders the work
of the device's streams (src/observe/stream_watch_torch.h). Nothing is waited for."""

from __future__ import annotations

import functools

import torch

from .. import _native

# In the order of StreamEvent.
REPORTS = (
    "event_record",
    "event_wait",
    "stream_creation",
    "stream_synchronization",
    "event_synchronization",
    "device_synchronization",
    "memory_allocation",
    "memory_deallocation",
)


def _report(kind: int, first: int = 0, second: int = 0) -> None:
    _native.stream_event(kind, first, second)


def watch() -> None:
    """From here on, for the life of the process. A torch without such a trace reports nothing."""
    activate = getattr(torch._C, "_activate_gpu_trace", None)
    try:
        from torch.cuda import _gpu_trace as trace
    except ImportError:
        return
    if activate is None:
        return
    for kind, name in enumerate(REPORTS):
        register = getattr(trace, f"register_callback_for_{name}", None)
        if register is not None:
            register(functools.partial(_report, kind))
    activate()
