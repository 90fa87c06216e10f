"""Whether a value of Python, NumPy, a table or torch holds NaN or Inf."""

from __future__ import annotations

import dataclasses
import math

import torch

from ..base.kinds import is_a

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Tensor

MAX_DEPTH, MAX_ITEMS, MAX_VALUES = 5, 4096, 1 << 28


class Look:
    """Whether values hold what is looked for: NaN where the batch holds NaN, else also Inf. effort: numbers read so
    far."""

    def __init__(self, only_nan: bool):
        self.only_nan, self.effort = only_nan, 0

    def _number(self, value):
        return math.isnan(value) or not self.only_nan and math.isinf(value)

    def _array(self, array):
        import numpy

        if array.dtype.kind not in "fc":
            return array.dtype.kind == "O" and any(self.is_bad(v, MAX_DEPTH - 1) for v in array.flat[:MAX_ITEMS])
        self.effort += array.size
        return bool((numpy.isnan(array) if self.only_nan else ~numpy.isfinite(array)).any())

    def _tensor(self, tensor: Tensor) -> bool:
        if (
            not (tensor.is_floating_point() or tensor.is_complex())
            or tensor.layout is not torch.strided
            or tensor.device.type == "meta"
        ):
            return False
        self.effort += tensor.numel()
        tensor = tensor.detach()
        return bool((torch.isnan(tensor) if self.only_nan else ~torch.isfinite(tensor)).any())

    def is_bad(self, value: Any, depth: int = 0) -> bool:
        """Never raises; what cannot be looked into is not bad."""
        try:
            return self._is_bad(value, depth)
        except Exception:
            return False

    def _is_bad(self, value: Any, depth: int) -> bool:
        if is_a(value, (bool, int, str, bytes, type(None))):
            return False
        if is_a(value, float):
            return self._number(value)
        if self.effort > MAX_VALUES:
            return False
        if is_a(value, torch.Tensor):
            return self._tensor(value)
        return (
            any(self.is_bad(v, depth + 1) for _, v in parts(value))
            if (array := as_array(value)) is None and depth < MAX_DEPTH
            else array is not None and self._array(array)
        )


def as_array(value: Any) -> Any:
    """The numpy array that a value is, or a column or row of a table; None for others."""
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and hasattr(value, "dtype"):
        import numpy

        return numpy.asarray(value)
    if module in ("pandas", "polars") and hasattr(value, "to_numpy") and not hasattr(value, "columns"):
        return value.to_numpy()
    return None


def parts(value: Any) -> list[tuple[Any, Any]]:
    """[(key, part)] of a list, tuple, dict, table or plain record."""
    if is_a(value, dict):
        return list(value.items())[:MAX_ITEMS]
    if is_a(value, (list, tuple)):
        return list(enumerate(value[:MAX_ITEMS]))
    if type(value).__module__.partition(".")[0] in ("pandas", "polars") and hasattr(value, "columns"):
        return [(name, value[name]) for name in list(value.columns)[:MAX_ITEMS]]
    if dataclasses.is_dataclass(value) and not is_a(value, type):
        return list(vars(value).items())[:MAX_ITEMS]
    return []
