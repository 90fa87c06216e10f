"""A Jupyter notebook as a program: its cells, how one is called, and a report shown below the one that runs."""

from __future__ import annotations

import functools
import html
import os
import sys

from ..base import sources
from . import output_suppression

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Document, Findings

HEIGHT = 560  # of the report in the page, in pixels; it scrolls


def shell() -> Any:
    """The InteractiveShell of a Jupyter kernel that this process is, or None (also in a terminal's IPython)."""
    ipython: Any = sys.modules.get("IPython")
    try:
        found = ipython.get_ipython()
    except AttributeError:
        return None
    return found if getattr(found, "kernel", None) is not None else None


def page(document: Document) -> str:
    """The report as HTML to put into another page: in a frame of its own, so that neither's style touches the other."""
    import json

    from .. import _native

    text = _native.render_html(json.dumps(document, allow_nan=False)).decode("utf-8")
    return (
        '<iframe title="finitude report" sandbox="allow-scripts" '
        f'style="width:100%;height:{HEIGHT}px;border:1px solid #ccc" '
        f'srcdoc="{html.escape(text, quote=True)}"></iframe>'
    )


def show(document: Document, text: str) -> bool:
    """Shows the report below the running cell. False: this process is no notebook's."""
    if shell() is None:
        return False
    from IPython.display import display

    display({"text/html": page(document), "text/plain": text}, raw=True)
    return True


def name_cells(found: Findings) -> Findings:
    """Findings in which a cell is called as IPython calls it, with its source, which lies in no file."""
    compiled = getattr(getattr(shell(), "compile", None), "_filename_map", None)
    return _named(found, {path: f"Cell In[{number}]" for path, number in compiled.items()}) if compiled else found


def _named(value, cells):
    if isinstance(value, list):
        return [_named(v, cells) for v in value]
    if isinstance(value, str):
        for path, name in cells.items():
            if os.path.basename(path) in value:
                value = value.replace(path, name).replace(os.path.basename(path), name)
        return value
    if not isinstance(value, dict):
        return value
    if value.get("file") in cells and "source" in value and not value["source"]:
        value = {**value, "source": sources.line(value["file"], value.get("line") or 0)}
    return {key: _named(v, cells) for key, v in value.items()}


def before_each(call: Callable[..., object]) -> Callable[[], None]:
    """Has it called before each cell of this process's notebook. What is returned ends that."""
    events = shell().events
    events.register("pre_run_cell", call)
    return lambda: events.unregister("pre_run_cell", call)


def _publisher(method):
    here = shell()
    return None if here is None else (here.display_pub, method)


for _method in ("publish", "clear_output"):
    output_suppression.MUTED.append(functools.partial(_publisher, _method))
