"""The step of a capsule in a program that `finitude replay CAPSULE --with` started, as inject.py puts it in place; with
`--against`, also with the values of its operations, as step_values.py compares them."""

from __future__ import annotations

import json
import os
import sys

from ..base import family
from .inject import Injection
from .step_values import Held, Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ..base.types import Injected


def from_environment() -> Injection | None:
    path = os.environ.pop(family.INJECT, None)
    if not path:
        return None
    with open(path, encoding="utf-8") as f:
        order = json.load(f)
    return Compared(order) if order.get("values") else Injection(order)


class Compared(Injection):
    """What of the order is for it: base/types.py, Injected."""

    def __init__(self, order: Injected):
        self.recorder = Recorder(order["values"])
        super().__init__(order)

    def arm(self) -> None:
        super().arm()
        if self.order["way"] == "start":
            self.recorder.start()

    def _is_ready(self) -> None:
        if not self.recorder.is_on:
            self.recorder.start()

    def _failed(
        self, optimizer: Any, sinks: Any, text: str = "", otherwise: str = "", only_if_same: bool = False
    ) -> None:
        self.recorder.end()  # what is computed to explain it is no part of the step
        super()._failed(optimizer, sinks, text, otherwise, only_if_same)

    def write(self, verdict: str, text: str, **more: Any) -> NoReturn:
        self.recorder.end()
        if verdict in ("fixed", "not fixed") and (original := self._original_in_use()):
            verdict, text = (
                "refused",
                f"the program imports {original} itself and not its changed copy: it is installed",
            )
        if verdict == "fixed" and (against := self.order.get("against")):
            more["values"] = self._values_kept(against)
        super().write(verdict, text, **more)

    def _original_in_use(self):
        files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        wanted = set(map(os.path.realpath, self.order.get("instead_of") or ()))
        return next((f for f in files if isinstance(f, str) and os.path.realpath(f) in wanted), None)

    def _values_kept(self, against):
        """A failure here is ours: nothing is then said of the values."""
        try:
            return Held(against, self.order["values"]).compared(self.order.get("birth"))
        except Exception as e:
            return {"trouble": f"{type(e).__name__}: {e}"}
