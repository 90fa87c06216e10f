"""Jupyter: `%load_ext finitude` watches every cell from then on; the report of a bad step is shown below its cell. The
line `%%explain` at the top of a cell runs it under a full trace, and shows where what it made went bad.

`finitude.watch(...)` in a cell needs no extension and shows its reports in the same way.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base.types import Watch

MAGIC = "explain"
_watch: Watch | None = None


def load(ipython: Any) -> None:
    """%load_ext finitude"""
    global _watch
    from . import api

    if _watch is None:
        _watch = api.watch()
    ipython.register_magic_function(lambda line, cell: _explain(ipython, cell), "cell", MAGIC)


def unload(ipython: Any) -> None:
    """%unload_ext finitude"""
    global _watch
    ipython.magics_manager.magics["cell"].pop(MAGIC, None)
    if _watch is not None:
        _watch.close()
        _watch = None


def _explain(ipython, cell):
    """%%explain: of the names that the cell binds, and of its last value, the first that is not finite."""
    from IPython.display import display

    from .explain_value import explain

    done: Any = None

    def run():
        nonlocal done
        before, count = dict(ipython.user_ns), ipython.execution_count
        # Numbered as the cell that runs, and as its lines: some IPythons count further before a cell runs.
        ipython.execution_count = max(ipython.compile._filename_map.values(), default=count)
        try:
            done = ipython.run_cell(f"# %%{MAGIC}\n{cell}", store_history=False)
        finally:
            ipython.execution_count = count
        if not done.success:  # IPython has shown why
            return None
        now = ipython.user_ns.items()  # `_` and the like are outputs of cells before
        return done.result, {name: one for name, one in now if name[0] != "_" and before.get(name) is not one}

    shown = explain(run)
    if done.success:
        display(shown)
