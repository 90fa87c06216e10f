"""Rules of the user's own: what else may be the cause of a birth. See docs/recipes/add-a-rule.md.

    @finitude.rule("gate-saturated")
    def gate_saturated(birth):
        if birth.op != "aten::reciprocal" or birth.input("self")["zero"] == 0:
            return None
        birth.clamped("self", min=1e-6)
        return finitude.Cause("user:gate-saturated", "the gate closed to exactly 0", fix="gate.clamp(min=1e-6)")

A rule is asked of every alarm that was run again, as the built-in ones are; the highest score wins, as between those.
It costs nothing before. One that raises is skipped and named on stderr once; training and report continue."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import sys

from .base.say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .base.types import Function, OwnProbe

# The scale of scores (src/explain/evidence.h). An experiment that contradicts costs 150.
ORIGIN, ONE_MEANING, SETTING, POINT, RANGE, INFINITIES, SINK_ONLY = 1000, 900, 800, 700, 600, 500, 300

CLASSES = (
    "log-of-zero",
    "log-of-negative",
    "exp-overflow",
    "overflow",
    "division-by-zero",
    "zero-times-infinity",
    "infinity-minus-infinity",
    "underflow",
    "variance-of-one",
    "domain-edge",
    "negative-domain",
    "fully-masked-softmax",
    "degenerate-linalg",
    "infeasible-ctc",
    "half-precision-overflow",
    "half-precision-underflow",
    "loss-scale-misuse",
    "exploding-gradient",
    "learning-rate",
    "optimizer-arithmetic",
    "clipping",
    "sticky-state",
    "corrupted-state",
    "bad-data",
    "wrong-backward",
    "uninitialised-memory",
    "memory-corruption",
    "other-rank",
    "collective-overflow",
)
_OWN_CLASS = re.compile(r"user:[a-z0-9]+(-[a-z0-9]+)*$")
_rules = {}  # name -> function, in order of entry
_silenced = set()


@dataclasses.dataclass
class Cause:
    """What a rule answers.

    cause_class: one of CLASSES, or one of your own that begins with "user:". text: one sentence with the numbers that
    show it. fix: what to write instead, or "". score: on the scale above. confidence: None: as the experiments say
    ("proven": two or more, all as predicted; "likely": one, or none and `unambiguous`; "possible": one contradicted). A
    word lowers it, and never raises it."""

    cause_class: str
    text: str
    fix: str = ""
    score: int = POINT
    confidence: str | None = None
    unambiguous: bool = False


class Birth:
    """The evidence, as in the report (docs/report.schema.json), and experiments on it.

    op, phase, node, module, file, line, source, rows: where it was born. inputs, outputs, scalars: of `first`, the op
    that turned finite values into a non-finite one (the birth itself, where nothing before it was bad). history: of the
    last good steps. Every experiment runs that op once more with one thing changed; it returns True if it came out as
    the cause predicts, False if not, and None if it cannot be tried here."""

    op: str | None
    phase: str
    node: str | None
    module: str | None
    file: str | None
    line: int | None
    source: str | None
    rows: list[int] | None

    def __init__(self, evidence: dict[str, Any], probe: OwnProbe):
        self.as_reported, self.history = evidence["birth"], evidence["history"]
        self._first, self._probe = evidence["first"], probe
        for key in ("op", "phase", "node", "module", "file", "line", "source", "rows"):
            setattr(self, key, self.as_reported.get(key))
        first = self._first or self.as_reported
        self.first = first["op"]
        self.inputs, self.outputs, self.scalars = first["inputs"], first["outputs"], first.get("scalars", [])

    def input(self, arg: str) -> dict[str, Any]:
        """Statistics of the tensor argument of that name: min, max, absmax, nan, inf, zero, numel, shape, dtype. Zeros
        where there is none, so that comparisons are false."""
        found = next((i for i in self.inputs if i.get("arg") == arg), None)
        return found or {
            "arg": arg,
            "min": 0.0,
            "max": 0.0,
            "absmax": 0.0,
            "nan": 0,
            "inf": 0,
            "zero": 0,
            "numel": 0,
            "shape": [],
            "dtype": "other",
        }

    def scalar(self, arg: str) -> str | None:
        """The text of the argument of that name that is no tensor, or None."""
        return next((s["text"] for s in self.scalars if s["arg"] == arg), None)

    def clamped(self, arg: str, min: float | None = None, max: float | None = None, finite: bool = True) -> bool | None:
        bounds = {k: float(v) for k, v in (("clamp_min", min), ("clamp_max", max)) if v is not None}
        said = " and ".join(f"{side} {v:g}" for side, v in (("above", min), ("below", max)) if v is not None)
        return self._try(f"{arg} clamped {said}", {"clamp_arg": arg, **bounds}, finite)

    def in_dtype(self, dtype: str, finite: bool = False) -> bool | None:
        """dtype: "float64" or "float32"."""
        if dtype not in ("float64", "float32"):
            raise ValueError("in_dtype takes float64 or float32")
        return self._try(f"in {dtype}", {"compute_dtype": dtype}, finite)

    def added(self, arg: str, value: float, finite: bool = True) -> bool | None:
        return self._try(f"{arg} + {value:g}", {"add_arg": arg, "add": float(value)}, finite)

    def scaled(self, arg: str, factor: float, finite: bool = True) -> bool | None:
        return self._try(f"{arg} * {factor:g}", {"scale_arg": arg, "scale": float(factor)}, finite)

    def replaced(self, arg: str, old: float, new: float, finite: bool = True) -> bool | None:
        """Elements of arg that equal `old` become `new`; NaN and Inf match themselves."""
        return self._try(
            f"{old:g} in {arg} replaced by {new:g}",
            {"replace_arg": arg, "replace_from": float(old), "replace_to": float(new)},
            finite,
        )

    def without_rows(self, rows: Iterable[int] | None = None, finite: bool = True) -> bool | None:
        """rows: None: those of the birth."""
        rows = list(self.rows or [] if rows is None else rows)
        return self._try(f"rows {', '.join(map(str, rows[:8]))} removed", {"drop_rows": rows}, finite) if rows else None

    def again(self, finite: bool = False) -> bool | None:
        return self._try("again as it was", {"again": True}, finite)

    def _try(self, name: str, variant: dict[str, Any], finite: bool) -> bool | None:
        return self._probe.expect(name, variant, bool(finite)) if self._probe.available else None


def rule(name: str) -> Callable[[Function], Function]:
    """Decorator: enters a function of a Birth as a rule. It returns a Cause, or None where it has nothing to say."""
    if not isinstance(name, str) or not name:
        raise ValueError('a rule has a name: @finitude.rule("my-rule")')

    def enter(function: Function) -> Function:
        _rules[name] = function
        return function

    return enter


def _problem(cause):
    if not isinstance(cause, Cause):
        return f"answers {type(cause).__name__}, not a finitude.Cause"
    if cause.cause_class not in CLASSES and not _OWN_CLASS.match(str(cause.cause_class)):
        return f"answers the class {cause.cause_class!r}; one of your own begins with 'user:'"
    if not isinstance(cause.text, str) or not cause.text or not isinstance(cause.fix, str):
        return "answers without a text"
    if cause.confidence not in (None, "proven", "likely", "possible"):
        return f"answers the confidence {cause.confidence!r}"
    return ""


def _complain(name, what):
    if name not in _silenced:
        _silenced.add(name)
        say(f"finitude: the rule {name!r} {what}; it is skipped\n")


def _asked(name, function):
    def ask(evidence, probe):
        if name in _silenced:
            return None
        try:
            cause = function(Birth(json.loads(evidence), probe))
            if cause is None:
                return None
            if problem := _problem(cause):
                _complain(name, problem)
                return None
            return {
                "class": cause.cause_class,
                "text": cause.text,
                "fix": cause.fix,
                "score": int(cause.score),
                "confidence": cause.confidence,
                "unambiguous": bool(cause.unambiguous),
            }
        except Exception as e:
            _complain(name, f"failed ({type(e).__name__}: {e})")
            return None

    return ask


def entered() -> list[tuple[str, Callable[..., Any]]]:
    """For the engine: (name, function) of every rule."""
    return [(name, _asked(name, function)) for name, function in _rules.items()]


def load(files: str) -> None:
    """Runs the files with rules, named in one text as in PATH. One that cannot be run is named on stderr."""
    for number, path in enumerate(filter(None, files.split(os.pathsep))):
        try:
            spec = importlib.util.spec_from_file_location(f"finitude_rules_{number}", path)
            if spec is None:
                raise ImportError("not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)  # type: ignore[union-attr]
        except Exception as e:
            _complain(path, f"cannot be loaded ({type(e).__name__}: {e})")
