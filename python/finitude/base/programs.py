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
    engine = held.get(compat.torch_version(engines.torch_here())) if name == PLAYER else None
    paths = [os.path.join(folder, name) for folder in ([engine] if engine else engines.homes())]
    return next(filter(os.path.exists, paths), paths[0])
