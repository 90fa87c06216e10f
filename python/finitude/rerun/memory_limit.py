"""Is there memory for a second run in place? Where the program itself runs out of it there, that ends the program:
no frame of finitude is on its stack to catch it."""

from __future__ import annotations

import resource

from ..program import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..base.types import Optimizer

LEAST = 64 << 20  # bytes, for what is recorded


def lacks(optimizers: Iterable[Optimizer]) -> str:
    """Why there is too little, or "". Of a process without a limit nothing is known, and nothing is said."""
    limits = [
        soft
        for soft, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA))
        if soft != resource.RLIM_INFINITY
    ]
    if not limits:
        return ""
    size, peak = _sizes()
    # What the first run took at most, once more, and copies: of parameters, their gradients and what the step writes in
    # place.
    wanted = (
        max(0, peak - size)
        + LEAST
        + 3 * sum(p.numel() * p.element_size() for o in optimizers for p in optimizer_members.parameters(o))
    )
    left = min(limits) - size
    return (
        f"{left >> 20} MB are left below the limit of memory, {wanted >> 20} MB may be needed" if left < wanted else ""
    )


def _sizes():
    """Bytes of address space: now, and at most so far."""
    found = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        for line in f:
            key, _, value = line.partition(":")
            found[key] = value.split()[:1]
    return tuple(int(found[key][0]) << 10 for key in ("VmSize", "VmPeak"))
