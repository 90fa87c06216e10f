"""What a program without an optimizer leaves in its parameters: after its last derivative nobody reads them."""

from __future__ import annotations

import sys

import torch

from .. import _native
from ..base.kinds import is_a
from ..program import optimizer_members
from ..report.merge import SEEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

    from ..base.types import Tensor
    from ..report.document import Report

MOST_VALUES, MOST_ELEMENTS = 10_000, 1000  # in all, and of one container
MOST_NAMED = 3
DEEP = 4  # containers in containers


def look(report: Report, shapes: Collection[Any]) -> None:
    """An advisory where names of the main module hold values of those shapes that are not finite. shapes: of what the
    program takes derivatives of and writes. What functions held is gone."""
    last = _native.hand_calls() - 1
    if report.alarms or any(a["step"] == last for a in report.advisories):
        return
    main = sys.modules.get("__main__")
    bad = [
        f"{name} is {_kind(tensor)}"
        for name, tensor in _named(dict(vars(main)) if main else {})
        if tensor.shape in shapes and optimizer_members.has_memory(tensor) and not _native.is_finite(tensor)
    ]
    if bad:
        more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        text = f"as the program ended, {', '.join(bad[:MOST_NAMED])}{more}, which its last loss does not show"
        report.advise(SEEN, last, text)


def _kind(tensor):
    nan, inf = int(tensor.detach().isnan().sum()), int(tensor.detach().isinf().sum())
    counts = [f"{count} {word}" for count, word in ((nan, "NaN"), (inf, "Inf")) if count]
    return f"not finite ({', '.join(counts)} of {tensor.numel()})"


def _named(names: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of what lies below, each tensor once. Runs no code of the program's."""
    open_, met = [(name, value, 0) for name, value in names.items() if not name.startswith("__")], set()
    while open_ and len(met) < MOST_VALUES:
        name, value, depth = open_.pop(0)
        if id(value) in met:
            continue
        met.add(id(value))
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            yield name, value
        elif depth == DEEP or type(value) in (dict, list, tuple) and len(value) > MOST_ELEMENTS:
            continue
        elif type(value) is dict:
            open_ += [(f"{name}[{key!r}]", one, depth + 1) for key, one in value.items() if type(key) in (str, int)]
        elif type(value) in (list, tuple):
            open_ += [(f"{name}[{i}]", one, depth + 1) for i, one in enumerate(value)]
        elif is_a(value, torch.nn.Module):
            parts = {**vars(value).get("_parameters", {}), **vars(value).get("_modules", {})}
            open_ += [(f"{name}.{key}", one, depth + 1) for key, one in parts.items()]
