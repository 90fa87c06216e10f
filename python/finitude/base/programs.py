"""The programs without Python that lie in the package, beside the engine."""

from __future__ import annotations

import os

from . import HOME

OFFLINE = "finitude-offline"  # reads what a run left, without torch
PLAYER = "finitude-replay"


def path_of(name: str) -> str:
    path = os.path.join(HOME, name)
    if not os.path.exists(path):  # an editable install keeps what was built elsewhere
        from importlib import util

        engine = util.find_spec("finitude._native")
        if engine is not None and engine.origin:
            return os.path.join(os.path.dirname(engine.origin), name)
    return path
