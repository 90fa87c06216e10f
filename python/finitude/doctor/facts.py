"""What the checks of first steps and of finished runs are given."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..base.types import FromFile


def number(value: Any) -> float:
    """A number of a report, where NaN and Inf are texts; NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def growth_to_end(values: Sequence[float]) -> tuple[int, float, float] | None:
    """(index of the last one before the growth, the value there, factor per value) of what grew tenfold and more up to
    the last one that is finite. Of run, report and doctor alike: src/signal/onset.h."""
    import torch  # noqa: F401  the engine's libraries

    from .. import _native

    end = len(values)
    while end and not math.isfinite(values[end - 1]):
        end -= 1
    found = _native.growth_to_end(list(values[:end]))
    return (found[0], found[3], found[1]) if found else None


def slope(values: Iterable[float]) -> tuple[float, float]:
    """(factor from first to last by a straight line through the logarithms, how well it fits from 0 to 1)."""
    logs = [math.log(v) for v in values if v > 0 and math.isfinite(v)]
    n = len(logs)
    if n < 2:
        return 1.0, 0.0
    mx, my = (n - 1) / 2, sum(logs) / n
    sxy = sum((i - mx) * (y - my) for i, y in enumerate(logs))
    sxx, syy = sum((i - mx) ** 2 for i in range(n)), sum((y - my) ** 2 for y in logs)
    if syy == 0:
        return 1.0, 0.0
    return math.exp(max(-690.0, min(690.0, sxy / sxx * (n - 1)))), sxy * sxy / (sxx * syy)


def samples(given: dict[str, Any], rows: Iterable[int]) -> list[Any]:
    """The indices in the data set of these rows of a batch, as far as the sampler reported them."""
    return [given["indices"][r] for r in rows if r < len(given["indices"])]


class Steps:
    """The first steps. `facts`: the document that doctor/look.py writes; the lists of it are attributes.

    again: the facts of another process that ran the same steps (--twice), or None. runs: how many did.
    """

    def __init__(self, facts: dict[str, Any], again: Steps | None = None, runs: int = 2):
        self.facts, self.again, self.runs = facts, again, runs

    def __getattr__(self, name):
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        return self.facts.get(name, default)

    def of(self, what: str) -> list[dict[str, Any]]:
        """Events of one kind."""
        return [e for e in self.events if e["what"] == what]

    @staticmethod
    def at(fact: dict[str, Any]) -> tuple[Any, ...]:
        """(file, line) of an event or another fact."""
        return tuple(fact["at"]) if "at" in fact else (fact["file"], fact["line"])

    def is_ruined(self) -> bool:
        """Is a loss or a gradient of these steps not finite?"""
        return self.bad_step() is not None or bool(self.bad_losses())

    def by_optimizer(self) -> dict[int, list[dict[str, Any]]]:
        """Steps by optimizer, in the order of their first step."""
        out = {}
        for s in self.steps:
            out.setdefault(s["ordinal"], []).append(s)
        return out

    def training_autocast(self) -> list[dict[str, Any]]:
        """Autocast regions that something was computed in that can have gradients."""
        return [a for a in self.autocast if a["grad"]]

    def autocast_dtypes(self) -> set[str]:
        return {a["dtype"] for a in self.training_autocast()}

    def bad_step(self) -> dict[str, Any] | None:
        """The first step with a loss or gradient that is not finite, which is no work of a GradScaler; or None."""
        for s in self.steps:
            bad_loss = s["loss"] is not None and not math.isfinite(number(s["loss"]))
            if bad_loss or any(p["grad"] and p["grad"]["nan"] + p["grad"]["inf"] for p in s["parameters"]):
                return s
        return None

    def bad_losses(self) -> list[dict[str, Any]]:
        """Backward calls with a loss that is not finite. A half-precision loss times a loss scale is skipped."""
        scaled = bool(self.of("scale"))
        return [
            e
            for e in self.of("backward")
            if e["loss"] is not None
            and not math.isfinite(number(e["loss"]))
            and not (scaled and e["dtype"] in ("float16", "bfloat16"))
        ]


@dataclasses.dataclass
class Replay:
    """A step of a capsule computed again."""

    code: int  # of `finitude replay`: 0 the same bits or the same class of failure, 1 not reproduced
    text: str  # what it said

    @property
    def says(self) -> str:
        """Its first line, without the time it took."""
        first = self.text.strip().splitlines()[0] if self.text.strip() else ""
        return re.sub(r", [0-9.]+ (ms|s)$", "", first)

    @property
    def is_finite(self) -> bool | None:
        """Did everything come out finite that was not? None: it does not say."""
        lines = self.text.splitlines()
        finite, still = (any(line.startswith(w) for line in lines) for w in ("finite in ", "non-finite in "))
        return None if finite == still else finite


class Run:
    """What a run left. document: the report (checked by the engine) or {}; ring: its steps, oldest first.

    capsules: the descriptions of the bad steps that it left. replays: of the one that the doctor was asked of, by how
    it was computed: "as recorded", "float32", "deterministic", "bfloat16"."""

    def __init__(
        self,
        document: FromFile,
        ring: Iterable[dict[str, Any]] = (),
        capsules: Iterable[dict[str, Any]] = (),
        directory: str = "",
        killed: bool = False,
        is_capsule: bool = False,
    ):
        self.document, self.ring, self.capsules = document, list(ring), list(capsules)
        self.directory, self.killed, self.is_capsule, self.replays = directory, killed, is_capsule, {}

    @property
    def who(self) -> str:
        """ "rank-1: " where one of several processes left this, else ""."""
        name = os.path.basename(os.path.normpath(self.directory)) if self.directory else ""
        return f"{name}: " if name.startswith(("rank-", "pid-")) else ""

    @staticmethod
    def part(capsule: Any, *keys: str) -> dict[str, Any]:
        """A part of the description of a capsule, which is anybody's: {} where it is not an object."""
        for key in keys:
            capsule = capsule.get(key) if isinstance(capsule, dict) else None
        return capsule if isinstance(capsule, dict) else {}

    @staticmethod
    def experiment_of(alarm: FromFile, *begins: str) -> tuple[str, str]:
        """(name, outcome) of the first experiment of an alarm whose name begins so; ("", "") where there is none."""
        for one in (alarm.get("cause") or {}).get("experiments") or []:
            if str(one.get("name", "")).startswith(begins):
                return str(one["name"]), str(one.get("outcome", ""))
        return "", ""

    def experiment(self, alarm: FromFile, *begins: str) -> str:
        return self.experiment_of(alarm, *begins)[1]

    @property
    def alarms(self) -> list[FromFile]:
        return self.document.get("alarms") or []

    @property
    def findings(self) -> list[FromFile]:
        """The alarms but those that repeat one of them: such a step was not run again."""
        return [a for a in self.alarms if self._place(a, "repeat_of") not in self._explained]

    def step(self, alarm: FromFile) -> str:
        """ "step 3", or "step 3 and 10 like it"."""
        more = self._repeats[id(alarm)]
        return f"step {alarm.get('step')}" + (f" and {more} like it" if more else "")

    @functools.cached_property
    def _explained(self) -> dict[tuple[str, str, Any], FromFile]:
        return {self._place(a, "step"): a for a in self.alarms if a.get("repeat_of") is None}

    @functools.cached_property
    def _repeats(self) -> collections.Counter[int]:
        """id of an alarm -> how many repeat it."""
        explained = (self._explained.get(self._place(a, "repeat_of")) for a in self.alarms)
        return collections.Counter(id(a) for a in explained if a is not None)

    @staticmethod
    def _place(alarm: FromFile, key: str) -> tuple[str, str, Any]:
        return str(alarm.get("optimizer")), str(alarm.get("rank", 0)), alarm.get(key)

    @property
    def advisories(self) -> list[FromFile]:
        return self.document.get("advisories") or []

    def watched(self, key: str) -> int:
        value = (self.document.get("watched") or {}).get(key)
        return value if isinstance(value, int) else 0

    @staticmethod
    def cause(alarm: FromFile) -> str:
        return (alarm.get("cause") or {}).get("class") or "unknown"

    @staticmethod
    def birth(alarm: FromFile) -> FromFile:
        return (alarm.get("births") or [{}])[0]

    def caused_by(self, *classes: str) -> list[FromFile]:
        """Alarms that repeat none, then advisories, of these cause classes."""
        return [a for a in [*self.findings, *self.advisories] if self.cause(a) in classes]

    def at(self, alarm: FromFile) -> tuple[str, int]:
        """(file, line) of the birth: for a backward birth, of the forward operation."""
        birth = self.birth(alarm)
        birth = birth.get("forward") or birth
        return birth.get("file") or "", birth.get("line") or 0

    def optimizers(self) -> dict[int, list[dict[str, Any]]]:
        """Steps of the ring by optimizer."""
        out = {}
        for s in self.ring:
            out.setdefault(s["optimizer"], []).append(s)
        return out
