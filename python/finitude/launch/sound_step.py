"""Is a step that came out finite the recorded one, only mended? And is a birth that was found the recorded one?"""

from __future__ import annotations

import os

import torch

from .. import _native
from ..capsules.placing import _names
from ..program import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

    from ..base.types import Birth, FromFile, Optimizer, Sink, Window

SMALL = 64  # bytes of an input that says little of where it comes from


def alarm_in(about: FromFile) -> FromFile:
    """The alarm of a capsule; {}: it has none."""
    alarm = about.get("alarm")
    return alarm if isinstance(alarm, dict) else {}


def birth_in(about: FromFile) -> FromFile | None:
    """The culprit of its alarm, or None."""
    births = alarm_in(about).get("births")
    return births[0] if isinstance(births, list) and births and isinstance(births[0], dict) else None


def has_bad_loss(window: Window) -> bool:
    return any(loss["bad"] for loss in window["losses"])


def bad_results(optimizer: Optimizer) -> list[Sink]:
    """Parameters and optimizer state that are not finite once the step was taken."""
    names, params = optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)
    sinks: list[Sink] = [("parameter", n, p.detach()) for n, p in zip(names, params) if not _native.is_finite(p)]
    for n, p in zip(names, params):
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        sinks += [
            ("state", f"{n}.{k}", v)
            for k, v in (state or {}).items()
            if isinstance(v, torch.Tensor) and not _native.is_finite(v)
        ]
    return sinks


def without_backward(
    about: dict[str, Any], recorded: dict[str, Any], optimizer: Optimizer, window: Window
) -> tuple[str, list[str]]:
    """(why this is no training step, or ""; notes on what it has less than the recorded one). A step without the
    backward of the recorded one is finite for that reason, and no fix. recorded: the optimizer as the capsule
    has it."""
    given = {
        n: p.grad
        for n, p in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer))
        if p.grad is not None
    }
    if not given:
        return "none of its parameters was given a gradient", []
    # Capsules of earlier versions do not say how many there were: none where the program itself sets gradients.
    sink = alarm_in(about).get("sink")
    wanted = recorded.get("backwards", 1 if isinstance(sink, dict) and sink.get("kind") == "loss" else 0)
    # The first few parameters show a backward; others may be the only ones that it reaches.
    came = (
        window["backwards"]
        or window["losses"]
        and any((s := _native.statistics(g)) and s["absmax"] > 0 for g in given.values())
    )
    if wanted and not came:
        return "no backward was called", []
    missing = [n for n in recorded.get("gradients", ()) if n not in given]
    if missing:
        return "", [f"no gradient was given to {_names(missing)}, which had one in the recorded step"]
    fewer = window["backwards"] and window["backwards"] < wanted
    return "", [
        f"backward was called {window['backwards']} times; in the recorded step {wanted} times"
    ] if fewer else []


def missing_inputs(inputs: Iterable[Any], there: Collection[bytes], unwritten: Collection[int]) -> list[str]:
    """Of what the recorded step was computed from, (kind, name, bytes) each, what did not come up in the program again,
    in words. there: what its step read. unwritten: numbers, among the filled ones, of memory that nothing had written,
    which comes up in no other run."""
    whole, missing, fills = set(there), [], -1
    for kind, name, data in inputs:
        fills += kind == "filled"
        if name or len(data) <= SMALL or data in whole or kind == "filled" and fills in unwritten:
            continue
        if not any(data in other or len(other) > SMALL and other in data for other in there):
            missing.append(f"{len(data)} bytes" + (f" ({kind})" if kind else ""))
    return missing


def same_birth(before: FromFile | None, now: Birth | None) -> bool:
    """Is it the same operation at the same place? Lines move as a program is changed; their text and the module
    show it as well. before: of a capsule."""
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
