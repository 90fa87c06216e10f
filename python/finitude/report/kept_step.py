"""The trace of a run with --level trace in which no step went bad: that of its last whole step, for `finitude diff` and
`finitude dump`."""

from __future__ import annotations

import json

from .. import _native
from ..program import optimizer_members
from . import incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Operation, Optimizer
    from .document import Report


def begin(level: str, is_second_process: bool) -> None:
    """A second process explains a step of another, and shows that one."""
    _native.keep_last_step(level == "trace" and not is_second_process)


def name(optimizer: Optimizer) -> None:
    """Reports what memory the steps of that optimizer read and write, before the program lets go of it. The same names
    as a bad step gets."""
    if _native.keeps_last_step():
        name_memory(optimizer)


def name_memory(optimizer: Optimizer) -> None:
    """For the trace that is taken next."""
    _native.last_step_forget_gone()
    for kind, label, tensor in optimizer_members.named_memory(optimizer):
        _native.last_step_name(tensor, kind, label)


def ops(report: Report) -> list[Operation]:
    """Of the last step that was whole; where a step went bad, or none was taken, what was traced last."""
    if not report.alarms and (found := _native.last_step_ops(incident.MAX_OPS)):
        _native.trace_clear()
        return json.loads(found)
    found = json.loads(_native.analyse("{}", incident.MAX_OPS, False))
    _native.trace_clear()
    return found.get("ops", [])
