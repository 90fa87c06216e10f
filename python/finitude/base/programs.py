"""The programs without Python that lie in the package, beside the engine."""

from __future__ import annotations

import os

from . import compat, engines

OFFLINE = "finitude-offline"  # reads what a run left, without torch
PLAYER = "finitude-replay"  # beside the engine, since it is linked with the same torch
DEVICE_LIBRARY = "libfinitude_cuda.so"


def path_of(name: str) -> str:
    """Where it is, or, where it is not, ought to be."""
    held = engines.folders()
    folders = engines.homes()
    if name == PLAYER and held:
        # Without a torch that fits, the newest: it shows what a capsule says, or says itself what it lacks.
        folders = [held.get(compat.torch_version(engines.torch_here())) or held[max(held)]]
    paths = [os.path.join(folder, name) for folder in folders]
    return next(filter(os.path.exists, paths), paths[0])
