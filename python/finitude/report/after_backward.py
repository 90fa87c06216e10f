"""A birth in what the script makes of the gradients between backward and the step, as a norm that it divides by. The
trace knows backward and an optimizer's step: all else is forward there."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Birth, Findings, Operation, Sink

WHERE = "between backward and the optimizer's step"


def may_be(sinks: Sequence[Sink]) -> bool:
    return any(kind == "gradient" for kind, *_ in sinks)


def births(found: Findings, ops: Sequence[Operation]) -> list[Birth]:
    """The births after which no operation of backward runs, though some ran before. To be asked before anything is
    changed in them; ops: of the whole step."""
    last = max((i for i, op in enumerate(ops) if op["phase"] == "backward"), default=-1)
    before, after = ({_place(op) for op in part if _is_bad(op)} for part in (ops[: last + 1], ops[last + 1 :]))
    return [
        birth
        for birth in found.get("births") or ()
        if last >= 0 and birth["phase"] in ("forward", "data") and _place(birth) in after - before
    ]


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
            fix["text"] = "multiply and divide gradients by finite numbers: write one at this line"


def _place(op):
    return op["op"], op["file"], op["line"]


def _is_bad(op):
    return any(use["nan"] or use["inf"] for use in op["outputs"])
