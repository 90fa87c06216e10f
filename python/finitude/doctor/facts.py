"""What the checks of first steps and of finished runs are given."""

import math


def number(value):
    """A number of a report, where NaN and Inf are texts; NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def slope(values):
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


class Steps:
    """The first steps. `facts`: the document that doctor/look.py writes; the lists of it are attributes.

    again: the facts of a second process that ran the same steps (--twice), or None.
    """

    def __init__(self, facts, again=None):
        self.facts, self.again = facts, again

    def __getattr__(self, name):
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, name, default=None):
        return self.facts.get(name, default)

    def of(self, what):
        """Events of one kind."""
        return [e for e in self.events if e["what"] == what]

    @staticmethod
    def at(fact):
        """(file, line) of an event or another fact."""
        return tuple(fact["at"]) if "at" in fact else (fact["file"], fact["line"])

    def training_autocast(self):
        """Autocast regions that something was computed in that can have gradients."""
        return [a for a in self.autocast if a["grad"]]

    def autocast_dtypes(self):
        return {a["dtype"] for a in self.training_autocast()}

    def bad_step(self):
        """The first step with a loss or gradient that is not finite, which is no work of a GradScaler; or None."""
        for s in self.steps:
            bad_loss = s["loss"] is not None and not math.isfinite(number(s["loss"]))
            if bad_loss or any(p["grad"] and p["grad"]["nan"] + p["grad"]["inf"] for p in s["parameters"]):
                return s
        return None

    def bad_losses(self):
        """Backward calls with a loss that is not finite. A half-precision loss times a loss scale is left out."""
        scaled = bool(self.of("scale"))
        return [e for e in self.of("backward") if e["loss"] is not None and not math.isfinite(number(e["loss"]))
                and not (scaled and e["dtype"] in ("float16", "bfloat16"))]


class Run:
    """What a run left. document: the report (checked by the engine) or {}; ring: its steps, oldest first; capsule: or {}."""

    def __init__(self, document, ring=(), capsule=None, directory="", killed=False):
        self.document, self.ring, self.capsule = document, list(ring), capsule or {}
        self.directory, self.killed = directory, killed

    @property
    def alarms(self):
        return self.document.get("alarms") or []

    @property
    def advisories(self):
        return self.document.get("advisories") or []

    def watched(self, key):
        value = (self.document.get("watched") or {}).get(key)
        return value if isinstance(value, int) else 0

    @staticmethod
    def cause(alarm):
        return (alarm.get("cause") or {}).get("class") or "unknown"

    @staticmethod
    def birth(alarm):
        return (alarm.get("births") or [{}])[0]

    def caused_by(self, *classes):
        """Alarms, then advisories, of these cause classes."""
        return [a for a in [*self.alarms, *self.advisories] if self.cause(a) in classes]

    def at(self, alarm):
        """(file, line) of the birth: for a backward birth, of the forward operation."""
        birth = self.birth(alarm)
        birth = birth.get("forward") or birth
        return birth.get("file") or "", birth.get("line") or 0

    def optimizers(self):
        """Steps of the ring by optimizer."""
        out = {}
        for s in self.ring:
            out.setdefault(s["optimizer"], []).append(s)
        return out
