"""A birth in what the script itself makes of gradients: between backward and the step, as a norm that it divides by,
which the trace knows as forward, and in a hook while backward runs, which it knows as a derivative of torch's."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Birth, Findings, Sink

FINITE = "multiply and divide gradients by finite numbers: write one at this line"
WHERE = "between backward and the optimizer's step"


def births(found: Findings, sinks: Sequence[Sink]) -> list[Birth]:
    """The births after which no operation of backward runs, though some ran before, where gradients alone are bad: a
    loss that is bad was so before backward. To be asked before births are put in or taken out."""
    after, all_births = found.pop("after_backward", ()), found.get("births") or []
    if not sinks or any(kind != "gradient" for kind, *_ in sinks):
        return []
    return [all_births[i] for i in after if i < len(all_births) and all_births[i]["phase"] in ("forward", "data")]


def add_to(found: Findings, late: Sequence[Birth]) -> None:
    """Into the births `late` of the findings, and the cause where the culprit is one: no forward pass, and no data."""
    for birth in late:
        birth["phase"] = "backward"
    cause, fix = found["cause"], found.get("fix")
    if not any(birth is found["births"][0] for birth in late):
        return
    if WHERE not in cause["text"] and " into the gradient of " not in cause["text"]:
        cause["text"] += f"; {WHERE}"
    if cause["class"] == "bad-data":
        cause["class"] = "wrong-backward"
        if fix and not fix["verified"]:
            fix["text"] = FINITE


def add_hook(found: Findings) -> None:
    """Into the cause of a birth in a hook of a tensor or of a gradient's accumulation: it is the script's own code, no
    derivative, and a number that it is given is no data."""
    birth = found["births"][0] if found.get("births") else None
    if birth is None or birth["phase"] != "backward" or not birth["op"]:
        return
    cause, fix = found["cause"], found.get("fix")
    if birth["node"].endswith("AccumulateGrad"):
        cause["text"] += "; this is the script's own hook on a gradient, which runs as backward has made it"
    elif cause["class"] == "bad-data" and f"{birth['op']} is given a number" in cause["text"] and _is_own(birth):
        cause["class"] = "wrong-backward"
        cause["text"] = cause["text"].replace(" is given a number", ", while backward runs, is given a number", 1)
        if fix and not fix["verified"]:
            fix["text"] = FINITE


def _is_own(birth):
    """Of a hook or of a Function of the program's: nodes of torch's have a number behind their name."""
    return not birth["node"][-1:].isdigit()
