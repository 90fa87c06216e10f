"""A process group of Finitude's own, on which ranks that step together exchange a few integers before a step.

It is made over the store through which the ranks met, without new_group: that is collective over all ranks, and one
that is not watched would not call it. It is no group of torch.distributed's, so nothing that the program does with its
groups sees it. Its operations are called on the object, past torch's dispatcher: no mode of the program hears them."""

from __future__ import annotations

import array
import atexit
import time
from datetime import timedelta

import torch

from ..base import compat
from ..base.unseen import unseen
from . import gathering, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

APPEAR_S = 30.0  # how long the other ranks are waited for where the group is made
# And before a step. The last exchange of backward has just brought them together: one that does not come by then
# has left the step out, or died.
WAIT_S = 60.0


class CannotAgree(Exception):
    """Why the ranks have not decided together."""


def _distributed():
    import torch.distributed as distributed

    return distributed


class SideGroup:
    """Of some ranks, each of which makes it for the same step."""

    @unseen
    def __init__(self, of: Sequence[int]):
        """Waits for the others for a limited time. Raises CannotAgree where not all come."""
        store = compat.group_store()
        rank, size = ranks.world()
        name = "finitude/agreement/" + ("all" if len(of) == size else "-".join(map(str, of)))
        self.size = len(of)
        try:
            self._meet(store, name, rank, of)
            distributed = _distributed()
            self._group: Any = distributed.ProcessGroupGloo(
                distributed.PrefixStore(name + "/gloo", store), of.index(rank), len(of), timedelta(seconds=WAIT_S)
            )
        except (RuntimeError, ValueError, OSError, AttributeError) as e:
            raise CannotAgree(_first_line(e)) from e
        self._values = array.array("q", (0, 0, 0))
        self._tensor = torch.frombuffer(self._values, dtype=torch.int64)
        atexit.register(self.close)  # its threads must not outlive the interpreter

    def _meet(self, store, name, rank, of):
        """All say that they are here, or none makes the group: it would wait in its constructor."""
        if store is None:
            raise CannotAgree("there is no store")
        here, limit = gathering.Gathering(store, f"{name}/here", rank, of), time.monotonic() + APPEAR_S
        here.arrive()
        decided = ""
        while not decided and time.monotonic() < limit:
            decided = gathering.said(store, f"{name}/decided")
            if not decided and here.is_complete():
                decided = gathering.say_first(store, f"{name}/decided", "go")
            if not decided:
                time.sleep(gathering.poll_s(len(of)))
        decided = decided or gathering.said_by_one(
            store,
            f"{name}/decided",
            len(of),
            lambda: (
                f"rank {', '.join(map(str, late))} did not come within {APPEAR_S:.0f} s"
                if (late := here.missing())
                else "go"
            ),  # the last one came meanwhile
        )
        if decided != "go":
            raise CannotAgree(decided)

    def most(self, value: int, key: int) -> int:
        """The largest value of all ranks. key: of the step, which has to be the same on all. Raises CannotAgree.
        Waits WAIT_S at most; after that there is no further exchange."""
        if self._group is None:
            raise CannotAgree("the group has been closed")
        values = self._values
        values[0], values[1], values[2] = value, key, -key
        try:
            self._group.allreduce([self._tensor], _distributed().ReduceOp.MAX).wait()
        except RuntimeError as e:
            raise CannotAgree(_first_line(e)) from e
        if values[1] != -values[2]:
            raise CannotAgree("the ranks are not in the same step")
        return values[0]

    def close(self) -> None:
        self._group = None


def _first_line(error):
    text = str(error)
    return text.splitlines()[0] if text else type(error).__name__
