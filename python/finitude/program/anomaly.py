"""torch's anomaly mode ends a backward pass at the first derivative that gives NaN, before that comes to any parameter:
which one it was, and, in a second run, what it gave."""

from __future__ import annotations

import functools
import re

import torch
from torch.autograd import graph

from .. import _native
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Tensor

_SAYS = re.compile(r"^Function '(.+)' returned nan values in its (\d+)th output\.")

_kept = "", {}  # the last derivative that gave something that is not finite: its name, number of an output -> tensor


def found(error: BaseException | None) -> tuple[str, int, Sequence[Tensor]] | None:
    """(name of the derivative, number of its output, what backward was called on) of what the program ended by, or
    None."""
    seen = []
    while error is not None and error not in seen:
        if type(error) is RuntimeError and (match := _SAYS.match(str(error))):
            return match[1], int(match[2]), _roots(error.__traceback__)
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None


def _roots(traceback):
    """Of the innermost engine call that it left."""
    roots = ()
    while traceback is not None:
        if traceback.tb_frame.f_code is graph._engine_run_backward.__code__:
            roots = optimizer_members.names_of(traceback.tb_frame).get("t_outputs", ())
        traceback = traceback.tb_next
    return roots


def name_of(node: str, output: int) -> str:
    return f"output {output} of {node}"


def watch() -> None:
    """Before a program begins that runs a step for the second time: what the derivatives give of the step that is
    traced is kept."""
    original = torch.autograd._engine_run_backward

    def engine_run_backward(roots, *args, **kwargs):
        if _native.trace_on() and torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            for node in optimizer_members.nodes_of(roots):
                if not hasattr(node, "variable"):
                    node.register_hook(functools.partial(_keep, node.name()))
        return original(roots, *args, **kwargs)

    torch.autograd._engine_run_backward = engine_run_backward  # type: ignore[assignment]


def _keep(name, outputs, _):
    global _kept
    bad = {i: t for i, t in enumerate(outputs) if isinstance(t, torch.Tensor) and not _native.is_finite(t)}
    if bad:
        _kept = name, bad


def given(node: str, output: int) -> Tensor | None:
    """What was kept of that output, or None."""
    return _kept[1].get(output) if _kept[0] == node else None
