"""finitude.explain: where the bad values of a tensor were born, asked by the program itself."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile

import torch  # the engine's libraries must be loaded first

from . import _native
from .api import watch
from .base import secrets
from .effects import notebook_cells
from .program.tensor_stats import count_text, tensors_in
from .report import graph_births
from .report.explanation import Explanation
from .session import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .base.types import Tensor

MOST_DEPTH = 6  # of containers in what the callable returns


def explain(value: Tensor | Callable[[], Any]) -> Explanation:
    """Where bad values were born, without waiting for an alarm; `print` shows it, a notebook too.

        print(finitude.explain(lambda: loss_of(model(batch))))

    Args:
        value: a callable without arguments, which is called once under a full trace: at any level, and also where
            nothing is watched. The first tensor that it returns, alone or in tuples, lists and dictionaries, and that
            is not finite, is explained. Or a tensor that the running step made: a loss, what a layer returned, a
            gradient. Under a watch with level="trace" the answer has line, cause and fix, and uses up what was
            recorded of the step: one full answer in a step. Else it is read from the tensor's autograd graph, where
            that is there: the operation and what it read, without a line. Of a finite tensor the answer says that.

    Raises:
        RuntimeError: neither what was recorded nor an autograd graph shows where the values were born, or a callable
            is given while a step runs a second time.
        Whatever the callable raises.
    """
    if not isinstance(value, torch.Tensor):
        if not callable(value):
            raise TypeError(f"finitude.explain takes a tensor or a callable, not {type(value).__name__}")
        return _of_call(value)
    if _native.is_finite(value):
        return Explanation("", {})
    session, holds = native_callbacks.session, count_text(value)
    if session is None or session.config.level != "trace" or not _native.trace_on():
        again = _what_to_type(session is not None and session.start is not None)
        return _of_graph(value, holds, "nothing is recorded here that could show where they were born", again)
    if session.target is not None or native_callbacks.runs_again():  # the trace is for the alarm
        return Explanation(holds, {})
    if session.traced.is_used_up():
        again = "what was recorded of this step is used up by an earlier answer; ask once in a step"
        return _of_graph(value, holds, "it is not recorded any more", again)
    return _of_trace(value, holds)


def _of_graph(tensor: Tensor, holds: str, why: str, again: str) -> Explanation:
    """What is not recorded: as far as the autograd graph shows it."""
    try:
        found = graph_births.read(tensor)
    except Exception as e:  # a graph of another library
        first_line = str(e).partition("\n")[0]
        found = graph_births.Reading([], [], [f"its autograd graph cannot be read ({type(e).__name__}: {first_line})"])
    if not (found.births or found.seen):
        raise RuntimeError("; ".join((f"finitude.explain: the tensor holds {holds}, and {why}", *found.notes, again)))
    how = f"read from the autograd graph, as {why}; for line, cause and fix: {again}"
    return Explanation(holds, {"births": found.births}, found.seen, [*found.notes, how])


def _of_call(call: Callable[[], Any]) -> Explanation:
    session = native_callbacks.session
    if session is None:
        # The answer is the report: what the watch writes at its end is of no use to anyone.
        with tempfile.TemporaryDirectory() as runs, watch(level="trace", capsules=0, quiet=True, runs=runs):
            return _of_call(call)
    if session.target is not None or native_callbacks.runs_again():
        raise RuntimeError("finitude.explain: this step runs a second time, and its trace is for the alarm")
    is_recording = session.config.level == "trace" and _native.trace_on()
    _native.trace_start()
    try:
        value = next((t for t in tensors_in(call(), MOST_DEPTH) if not _native.is_finite(t)), None)
        return Explanation("", {}) if value is None else _of_trace(value, count_text(value))
    finally:
        if not is_recording:
            _native.trace_stop()
            _native.trace_clear()


def _of_trace(tensor: Tensor, holds: str) -> Explanation:
    session: Any = native_callbacks.session
    found = notebook_cells.name_cells(session.analysis.findings(None, [("tensor", "", tensor)]))
    _native.trace_start()
    births = found.get("births")
    if not births or not (births[0]["op"] or births[0]["file"]):
        raise RuntimeError(
            f"finitude.explain: the tensor holds {holds}, and nothing that was recorded made them: they are older than "
            "this step"
        )
    session.traced.use_up()
    return Explanation(holds, found)


def _what_to_type(is_run: bool) -> str:
    """How to run what made a tensor with all of it recorded. is_run: under `finitude run`."""
    call = "pass a callable that makes it: finitude.explain(lambda: ...)"
    if notebook_cells.shell() is not None:
        call = f"type %%explain at the top of the cell that makes it, after %load_ext finitude, or {call}"
    if is_run and os.path.isfile(sys.argv[0]):
        return f"{call}, or type: finitude run --level trace {shlex.join(secrets.masked_words(sys.argv))}"
    return f'{call}, or make it under finitude.watch(level="trace")'
