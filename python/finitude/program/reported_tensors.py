"""What was not finite when an alarm was reported. A skipped step leaves its gradients and its loss behind; whoever
looks later for what a script's own exception is about is not to take them for news."""

from __future__ import annotations

import sys

import torch
from torch.utils.weak import TensorWeakRef

from .. import _native
from ..base.kinds import is_a
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from ..base.types import Left, Tensor

MAX_LOOKED_AT = 64 << 20  # bytes of a tensor without a graph
MAX_CARRIED = 4 << 20  # bytes of values that a bad step computed, held until another one is reported


def has_graph(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # of a view whose base was written no node can be made: it had one
        return True


def _version(tensor):
    return 0 if tensor.is_inference() else tensor._version


def _tensors(value):
    """The value, or what a tuple, list or dict holds: a hidden state has several parts."""
    parts = value.values() if type(value) is dict else value if type(value) in (tuple, list) else (value,)
    return [v for v in list(parts)[:64] if is_a(v, torch.Tensor)]


def _is_small_data(tensor):
    return (
        type(tensor) is torch.Tensor
        and not has_graph(tensor)
        and tensor.layout is torch.strided
        and tensor.nbytes <= MAX_LOOKED_AT
    )


class Known:
    """Tensors as they were. What has been written since, or has the address of such a one, is another matter."""

    def __init__(self):
        self._held = []  # what was bad and has no graph, such as a batch, as weak references
        self._kept, self.carried = [], []  # carried: (name, tensor) of what a bad step computed, for the next to read
        # What an alarm's step leaves in places that each step re-binds: (number of its optimizer, step), of the last
        self._left: tuple[tuple[int | None, int] | None, list[Left]] = (None, [])

    def note(self, tensors: Iterable[Tensor]) -> None:
        still = [(ref, version) for ref, version in self._kept if (t := ref()) is not None and _version(t) == version]
        self._kept = still + [(TensorWeakRef(t), _version(t)) for t in tensors if t not in self]

    def leave(self, ordinal: int | None, step: int, left: list[Left]) -> None:
        self._left = (ordinal, step), left

    def left_by(self, ordinal: int | None, step: int) -> list[Left]:
        """What that step has left so: the next begins with it."""
        return self._left[1] if self._left[0] == (ordinal, step) else []

    def carry(self, left: Iterable[Left]) -> None:
        """What a bad step leaves in such places, for the next to read."""
        self.carried += [(one.name, tensor) for one in left for tensor in one.tensors]

    def note_frames(self, frame: FrameType | None = None) -> None:
        """Values with a graph in the frames that lead here, such as the loss that was given to backward."""
        frame = frame or sys._getframe(1)
        self.carried, self._held, size = [], [], 0
        while frame is not None:
            values = [(name, v) for name, value in optimizer_members.names_of(frame).items() for v in _tensors(value)]
            found = [(name, v) for name, v in values if has_graph(v) and not _native.is_finite(v)]
            self._held += [
                (TensorWeakRef(v), _version(v)) for _, v in values if _is_small_data(v) and not _native.is_finite(v)
            ]
            self.note([v for _, v in found])
            for name, v in found:
                size += v.untyped_storage().nbytes() if v.layout is torch.strided else MAX_CARRIED
                if size <= MAX_CARRIED:
                    self.carried.append((name, v.detach()))
            frame = frame.f_back

    def still_held(self) -> list[Tensor]:
        """Of what was bad in names then, without a graph: what nobody has written since."""
        return [t for ref, version in self._held if (t := ref()) is not None and _version(t) == version]

    def __contains__(self, tensor: Tensor) -> bool:
        return any(ref() is tensor and _version(tensor) == version for ref, version in self._kept)
