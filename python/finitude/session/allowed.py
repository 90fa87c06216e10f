"""What the user declared as intended (finitude.allow): alarms that it covers are reported, and stop nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm, Tensor


class Allowance:
    def __init__(self, module: str | None, op: str | None, reason: str):
        self.module, self.op, self.reason, self.used = module, op, reason, 0

    def matches(self, birth):
        if self.op is not None and birth.get("op") not in (self.op, f"aten::{self.op}"):
            return False
        if self.module is not None:
            place = birth.get("module", "")
            if place != self.module and not place.endswith("." + self.module):
                return False
        return True

    def describe(self) -> str:
        return f"module={self.module!r} op={self.op!r} ({self.reason})"


class Allowed:
    def __init__(self):
        self.parts: list[Allowance] = []  # of the program, in which values are born
        self.tensors: list[Tensor] = []
        self.is_any = False

    def add_part(self, allowance: Allowance) -> None:
        self.parts.append(allowance)
        self.is_any = True

    def add_tensor(self, tensor: Tensor) -> None:
        self.tensors.append(tensor)
        self.is_any = True

    def covers(self, alarm: Alarm) -> bool:
        """Is that all there is to the alarm?"""
        if self.tensors and alarm["rerun_by"] != "none" and not alarm["births"]:
            return True  # nothing else than values declared as intended reached the sink
        birth = alarm["births"][0] if alarm["births"] else None
        for allowance in self.parts:
            if birth and allowance.matches(birth):
                allowance.used += 1
                return True
        return False
