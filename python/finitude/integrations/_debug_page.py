"""The page itself. Its class is of torch's, so this module is imported only where torch has that; the process that
serves the page imports it too."""

from __future__ import annotations

from torch.distributed.debug import _debug_handlers, _frontend

from .torch_debug import NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class FinitudePage(_frontend.DebugHandler):
    def routes(self) -> list[_frontend.Route]:
        return [_frontend.Route(f"/{NAME}", self._show)]

    def nav_links(self) -> list[_frontend.NavLink]:
        return [_frontend.NavLink(f"/{NAME}", "Finitude")]

    def _show(self, request: Any) -> bytes:
        addresses, answers = _debug_handlers.fetch_all(NAME, timeout=self.fetch_timeout)
        return request.frontend.render_template("json_resp.html", title="Finitude", addrs=addresses, resps=answers)

    def dump(self) -> str | None:
        """What is written where periodic dumps have it on."""
        addresses, answers = _debug_handlers.fetch_all(NAME, timeout=self.fetch_timeout)
        return "\n".join(f"=== {where} ===\n{one.text}" for where, one in zip(addresses, answers))

    def dump_filename(self) -> str:
        return NAME
