"""What a tensor holds, in words and as reports have it."""

from __future__ import annotations

from .. import _native
from ..base.plain_json import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Tensor


def count_text(tensor: Tensor) -> str:
    """ "3 NaN and 1 Inf"."""
    s = _native.statistics(tensor) or {"nan": 0, "inf": 0}
    parts = [f"{s['nan']} NaN"] if s["nan"] else []
    parts += [f"{s['inf']} Inf"] if s["inf"] else []
    return " and ".join(parts) or "no"


def statistic(name: str, tensor: Tensor) -> dict[str, Any] | None:
    s = _native.statistics(tensor)
    if s is None:
        return None
    return {
        "arg": name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).replace("torch.", ""),
        **{k: number(s[k]) for k in ("min", "max", "absmax", "nan", "inf", "pos_inf", "neg_inf", "zero", "numel")},
    }
