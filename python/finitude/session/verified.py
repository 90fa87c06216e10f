"""--verify every=N: what the engine finds of healthy steps that it computes twice. A mismatch is an advisory, an event
on disk and one line on stderr. It stops nothing: which of the two computations was wrong is not known to the policy."""

from __future__ import annotations

import json

from .. import _native
from ..base.say import say
from ..program import optimizer_members, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..base.types import Config, Optimizer
    from ..report.document import Report

KIND = "corrupted-step"
MOST_LINES = 20  # on stderr; later ones are in the report and in events.jsonl
PARAMETERS = ("parameter", "state", "gradient")


GIVES = {
    "plays": "what the plays give",
    "step": "what the step had: its bits depend on the number of threads, or on which comes first",
    "others": "other bits again, as where it adds in another order",
}


def _place(found):
    line = f" at {found['file']}:{found['line']}" if found.get("line") else ""
    module = f" in {found['module']}" if found.get("module") else ""
    part = " in the backward of the operation" if found.get("backward") and line else ""
    return (" of the optimizer" if found.get("of_optimizer") else part) + line + module


def _memory(found, names: Sequence[str]) -> str:
    """What memory is called: "the gradient of head.weight", "the result of aten::mm", "an input of the step"."""
    kind, name = found.get("memory", ""), found.get("name", "")
    number, _, key = name.partition(".")
    if kind in PARAMETERS and number.isdecimal() and int(number) < len(names):
        name = names[int(number)]
    if kind == "state":
        return f"{key} in the optimizer state of {name}"
    if kind:
        return f"the {kind} of {name}" if kind == "gradient" else f"the {kind} {name}".rstrip()
    made_by = found.get("made_by", "")
    return f"the result of {made_by}" if made_by else "memory that the step began with"


def _cores(found) -> str:
    """Which of the two is wrong is known where a third core agrees with one of them."""
    text = f"gives these bits each time on core {found['core']}, and other bits each time on core {found['other_core']}"
    odd = f"; a third core contradicts core {found['odd_core']}" if found["odd_core"] >= 0 else ""
    return f"{text}, from the same bytes{odd}"


def _threads(found) -> str:
    """What the operation gives with another number of threads than the step had, where that was tried."""
    threads = found.get("threads", 0)
    if not threads:
        return ""
    return f"; with {threads} {'thread' if threads == 1 else 'threads'} it gives {GIVES[found['gives']]}"


def describe(found: dict[str, Any], names: Sequence[str]) -> str:
    """One mismatch as a sentence. names: of the parameters."""
    what = found["what"]
    if what == "operation" and found["core"] >= 0:
        return f"{found['op']}{_place(found)} {_cores(found)} (persistent)"
    if what == "operation":
        return (
            f"{found['op']}{_place(found)} gave other bits than {found['plays']} plays of the step give on the same "
            f"bytes (transient){_threads(found)}"
        )
    if what == "memory":
        return (
            f"{_memory(found, names)} had other bits when {found['op']}{_place(found)} read it (argument "
            f"{found['argument']}) than {found['plays']} plays have there; no operation wrote in between "
            "(memory-corruption)"
        )
    if what == "result":
        block = f", one run of blocks of {found['block']} bytes" if found["block"] else ""
        return (
            f"{_memory(found, names)} has other bits than the operations that made it give: {found['bits']} bits in "
            f"{found['bytes']} bytes, from byte {found['first']} to {found['last']}{block}, at address "
            f"{found['address']:#x}; no operation wrote in between (memory-corruption)"
        )
    return (
        f"{_memory(found, names)} ({found['size_bytes']} bytes at address {found['address']:#x}) changed while the "
        "step was computed, and no operation wrote there (memory-corruption)"
    )


class VerifiedSteps:
    def __init__(self, config: Config, report: Report, part: Callable[..., Any]):
        """part: calls its argument, and notes an internal failure."""
        self._report, self._in_guard = report, part
        self._lines_left = 0 if config.quiet else MOST_LINES

    def add(self, optimizer: Optimizer, found: str) -> None:
        """A step was verified, and is not what it is when it is computed again. found: a JSON array of the engine's."""
        names = optimizer_members.names(optimizer)
        for one in json.loads(found):
            self._in_guard(self._list, one, names)

    def _list(self, found, names):
        text = describe(found, names)
        self._report.advise(KIND, found["step"], text)
        if self._lines_left > 0:
            self._lines_left -= 1
            rank, size = ranks.world()
            say(f"{f'[rank {rank}] ' if size > 1 else ''}finitude: corrupted step {found['step']}: {text}\n")

    def end(self, config: Config) -> None:
        """Says what was asked for and not verified, and which kernels are not the same in each run."""
        if not config.verify:
            return
        counts = _native.verified_counts()
        if counts["not_played"]:
            self._report.add_not_watched(f"{counts['not_played']} steps (--verify): {counts['why_not']}")
        if counts["nondeterministic"]:
            text = "operators that give other bits in each run, not compared: " + ", ".join(counts["nondeterministic"])
            self._report.advise("nondeterministic-kernels", None, text)
