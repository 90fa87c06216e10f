"""Is a step that came out finite the recorded one, only mended? And is a birth that was found the recorded one?"""

from __future__ import annotations

import os

from .. import _native
from ..capsules.placing import _names
from ..program import discover

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Birth, Optimizer, Window


def without_backward(
    about: dict[str, Any], told: dict[str, Any], optimizer: Optimizer, window: Window
) -> tuple[str, list[str]]:
    """(why this is no training step, or ""; notes on what it has less than the recorded one). A step without the
    backward of the recorded one is finite for that reason, and no fix. told: the optimizer as the capsule has it."""
    given = {n: p.grad for n, p in zip(discover.names(optimizer), discover.parameters(optimizer)) if p.grad is not None}
    if not given:
        return "none of its parameters was given a gradient", []
    # Capsules of earlier versions do not say how many there were: none where the program itself sets gradients.
    alarm = about.get("alarm")
    sink = alarm.get("sink") if isinstance(alarm, dict) else None
    wanted = told.get("backwards", 1 if isinstance(sink, dict) and sink.get("kind") == "loss" else 0)
    # The first few parameters tell of a backward; others may be the only ones that it reaches.
    came = (
        window["backwards"]
        or window["losses"]
        and any((s := _native.statistics(g)) and s["absmax"] > 0 for g in given.values())
    )
    if wanted and not came:
        return "no backward was called", []
    missing = [n for n in told.get("gradients", ()) if n not in given]
    if missing:
        return "", [f"no gradient was given to {_names(missing)}, which had one in the recorded step"]
    fewer = window["backwards"] and window["backwards"] < wanted
    return "", [
        f"backward was called {window['backwards']} times; in the recorded step {wanted} times"
    ] if fewer else []


def same_birth(before: Birth | None, now: Birth | None) -> bool:
    """Is it the same operation at the same place? Lines move as a program is changed; their text and the module tell as
    well."""
    if not before or not now or (before.get("op"), before.get("phase")) != (now.get("op"), now.get("phase")):
        return False
    if before.get("source") and before.get("source") == now.get("source"):
        return True
    if before.get("module") and before.get("module") == now.get("module"):
        return True
    return (
        bool(before.get("file"))
        and os.path.basename(str(before["file"])) == os.path.basename(now.get("file") or "")
        and before.get("line") == now.get("line")
    )
