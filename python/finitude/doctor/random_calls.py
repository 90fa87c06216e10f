"""Who draws random numbers in the first steps, from which generator, and in which order (--random)."""

from __future__ import annotations

import functools
import random
import sys

import torch

from .measure import place, tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_PLACES = 2000
NO_DRAW = ("seed", "getstate", "setstate", "get_state", "set_state", "get_bit_generator", "set_bit_generator")


class RandomCalls:
    """Calls by operation, place and generator, in the order of their first call. Each has its number of calls by step:
    key "0" is before the end of step 0, and so on, counted over all optimizers."""

    def __init__(self, facts: dict[str, Any], steps: Callable[[], int]):
        self.calls: dict[Any, dict[str, Any]] = {}
        self.steps, self.facts = steps, facts
        self.left_out = 0

    def note(self, name: str, generator: str, in_backward: bool = False) -> None:
        at = place()
        key = name, at, generator, in_backward
        if key not in self.calls:
            if len(self.calls) >= MAX_PLACES:
                self.left_out += 1
                return
            one = {"op": name, "at": at, "generator": generator, "backward": in_backward, "by_step": {}}
            self.calls[key] = one
        counts = self.calls[key]["by_step"]
        step = str(self.steps())
        counts[step] = counts.get(step, 0) + 1

    def of_operation(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, in_backward: bool) -> None:
        """After an operation; only one that draws counts."""
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return
        generator = kwargs.get("generator")
        if generator is None:
            generator = next((a for a in args if isinstance(a, torch.Generator)), None)
        if generator is None:
            device = next((t.device.type for _, t in tensors_of(out)), "cpu")
            which = f"torch, default of {device}"
        else:
            which = f"torch.Generator of {generator.device.type}, seed {generator.initial_seed()}"
        self.note(func._schema.name, which, in_backward)

    def over(self) -> None:
        self.facts["random"] = list(self.calls.values())
        self.facts["random_left_out"] = self.left_out


def watch(look: Any) -> None:
    """Replaces the functions of `random`, and of numpy.random where numpy is loaded, that draw from their global
    generators. A generator object of the program's own is not seen."""
    owners: list[tuple[Any, Any, str]] = [(random, random._inst, "random")]
    if "numpy" in sys.modules:
        import numpy

        owners.append((numpy.random, numpy.random.mtrand._rand, "numpy.random"))
    for module, generator, name in owners:
        for key, function in list(vars(module).items()):
            if getattr(function, "__self__", None) is generator and key not in NO_DRAW:
                setattr(module, key, _noted(look, function, f"{name}.{key}", f"{name}, global"))


def _noted(look, function, name, generator):
    @functools.wraps(function)
    def draw(*args, **kwargs):
        if not look.is_elsewhere():
            look.looking(look.random.note, name, generator)
        return function(*args, **kwargs)

    return draw
