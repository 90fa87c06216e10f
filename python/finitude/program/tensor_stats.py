"""What a tensor holds, in words and as reports have it."""

from __future__ import annotations

import torch

from .. import _native
from ..base.kinds import is_a
from ..base.plain_json import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..base.types import Figures, Statistics, Tensor


def count_text(tensor: Tensor) -> str:
    """ "3 NaN and 1 Inf"."""
    s = _native.statistics(tensor)
    return _native.count_text(s["nan"], s["inf"]) if s else _native.count_text(0, 0)


def statistic(name: str, tensor: Tensor) -> Statistics | None:
    """As a report has it; None of a tensor without values to read."""
    s = _native.statistics(tensor)
    return None if s is None else statistic_of(name, tensor, s)


def statistic_of(name: str, tensor: Tensor, s: Figures) -> Statistics:
    """s: what _native.statistics found."""
    return {
        "arg": name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).replace("torch.", ""),
        "min": number(s["min"]),
        "max": number(s["max"]),
        "absmax": number(s["absmax"]),
        "nan": s["nan"],
        "inf": s["inf"],
        "pos_inf": s["pos_inf"],
        "neg_inf": s["neg_inf"],
        "zero": s["zero"],
        "numel": s["numel"],
    }


def listed(name: str, tensor: Tensor) -> list[Statistics]:
    """The same, for the outputs of a birth: none of a tensor without values to read."""
    s = statistic(name, tensor)
    return [] if s is None else [s]


def tensors_in(value: Any, depth: int) -> Iterator[Tensor]:
    """Those of tuples, lists and the values of dictionaries, that many containers deep."""
    if is_a(value, torch.Tensor):
        yield value
    elif is_a(value, dict) and depth:
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif is_a(value, (list, tuple)) and depth:
        for item in value:
            yield from tensors_in(item, depth - 1)
