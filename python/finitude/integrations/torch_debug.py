"""A page of torch.distributed.debug, next to its stacks and its flight recorder: the steps, alarms and advisories of
each rank, while it trains or hangs.

    from torch.distributed.debug import start_debug_server
    from finitude.integrations import torch_debug

    start_debug_server(handlers=torch_debug.handlers())        # on every rank; the page is /finitude

torch calls its debug server experimental. Where it has none, or another one, `handlers` returns None, which stands for
its own pages."""

from __future__ import annotations

import json
import os

from .. import _native
from ..session import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "finitude"
MOST = 20  # of the newest alarms, and of the newest advisories


def handlers() -> list[Any] | None:
    """The pages of torch and that of Finitude, for start_debug_server. To be called on every rank: what the page asks
    each of them is answered from then on."""
    try:
        from torch._C._distributed_c10d import _register_handler
        from torch.distributed.debug._debug_handlers import default_handlers

        pages = [*default_handlers(), _page()]
        _register_handler(NAME, _answer)
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return None
    return pages


def state() -> dict[str, Any]:
    """What this process knows of its run. Called in a thread of torch's: nothing is waited for, and no tensor read."""
    session = native_callbacks.session
    if session is None or session.pid != os.getpid():
        return {"watched": False}
    report = session.report
    kept = ("step", "optimizer", "text", "action", "rerun", "capsule")
    return {
        "watched": True,
        "counters": _native.counters(),
        "alarms": [{key: alarm.get(key) for key in kept} for alarm in list(report.alarms)[-MOST:]],
        "advisories": [
            {key: one.get(key) for key in ("kind", "step", "text")} for one in list(report.advisories)[-MOST:]
        ],
        "failures": len(report.failures),
        "folder": report.directory or None,
        "redacted": bool(session.config.redact),
    }


def _answer(request: Any, response: Any) -> None:
    """Called by torch's worker server."""
    try:
        found = state()
        if found.get("redacted"):
            found["alarms"] = [{"step": alarm["step"]} for alarm in found["alarms"]]
            found["advisories"] = [{"kind": one["kind"], "step": one["step"]} for one in found["advisories"]]
        text, status = json.dumps(found, default=str), 200
    except Exception as e:
        text, status = json.dumps({"error": type(e).__name__}), 500
    response.set_content(text.encode(), "application/json")
    response.set_status(status)


def _page():
    from ._debug_page import FinitudePage

    return FinitudePage()
