"""What was not finite when an alarm was told. A step that is left out leaves its gradients and its loss behind; whoever looks later
for what a script's own exception is about is not to take them for news."""

import sys

import torch
from torch.utils.weak import TensorWeakRef

from .. import _native
from . import discover


def _version(tensor):
    return 0 if tensor.is_inference() else tensor._version


class Known:
    """Tensors as they were. What has been written since, or stands where such a one stood, is another matter."""

    def __init__(self):
        self._kept = []

    def note(self, tensors):
        still = [(ref, version) for ref, version in self._kept if (t := ref()) is not None and _version(t) == version]
        self._kept = still + [(TensorWeakRef(t), _version(t)) for t in tensors if t not in self]

    def note_frames(self, frame=None):
        """Values with a graph in the frames that lead here, such as the loss that was given to backward."""
        frame = frame or sys._getframe(1)
        while frame is not None:
            self.note([v for v in discover.names_of(frame).values()
                       if isinstance(v, torch.Tensor) and v.grad_fn is not None and not _native.is_finite(v)])
            frame = frame.f_back

    def __contains__(self, tensor):
        return any(ref() is tensor and _version(tensor) == version for ref, version in self._kept)
