"""The start of a capsule's step, as a program is given it: which of its optimizers, parameters and buffers it fits."""

from __future__ import annotations

from ..capsules import placing
from ..program import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..base.types import Optimizer, Tensor


class Recorded:
    """held: the tensors of the start. inputs: (kind, name, bytes) of what the step read. is_first: it is a program's
    first step. An optimizer is given as the capsule has it (`record`)."""

    def __init__(self, held: placing.Held, inputs: Iterable[tuple[str, str, bytes]], is_first: bool):
        self._held, self._is_first = held, is_first
        self._read = {name for _, name, _ in inputs}

    def misfits(
        self, record: dict[str, Any], optimizer: Optimizer
    ) -> tuple[list[str], dict[str, Tensor], dict[str, Tensor]]:
        """(texts, its parameters by name, the buffers of its modules by name)."""
        parameters = dict(zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)))
        buffers = dict(optimizer_members.buffers(optimizer))
        wanted = {n: k for n, k in record["buffers"].items() if n in buffers or k is not None}
        found = placing.misfits(self._held, record["parameters"], parameters)
        found += placing.misfits(self._held, wanted, {n: b for n, b in buffers.items() if n in wanted})
        return found, parameters, buffers

    def put(
        self, record: dict[str, Any], optimizer: Optimizer, parameters: dict[str, Tensor], buffers: dict[str, Tensor]
    ) -> str:
        """Into that optimizer. What has no place in it, or "". May raise Misfit."""
        placing.put_tensors(self._held, record["parameters"], parameters)
        placing.put_tensors(self._held, self._before(record["buffers"]), buffers)
        if record["class"] != type(optimizer).__name__:
            return (
                f"the state of {record['class']} has no place in {type(optimizer).__name__}, which begins without any"
            )
        placing.put_state(self._held, record, optimizer, parameters)
        placing.rate(record, optimizer)
        return ""

    def _before(self, buffers: dict[str, Any]) -> dict[str, Any]:
        """Those that the capsule has as they were before the step. One of a program's first step whose making is on the
        tape too is there as the step left it; what the program begins with is its own."""
        return {n: k for n, k in buffers.items() if k in self._read} if self._is_first else buffers

    def began(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """What that optimizer had as the recorded step began, if it is to have that here: not where it stepped before
        the first batch was fetched, as it may have read what it then wrote before the step began."""
        began = record.get("began")
        if began is None or record.get("stepped_before") != 0 or not self._held.holds(began):
            return None
        return {**record, **began, "not_kept": []}
