"""First steps that are bad by memory that nobody had written, and that held something finite: it was too large, or it
holds something else in every run. A second process is asked how much of what the training began with is such memory."""

from __future__ import annotations

from ..program import optimizer_members, ranks
from ..program.tensor_stats import listed
from ..report import incident
from ..rerun import first_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm, Config, Optimizer, StartMagnitudes
    from ..rerun.restart import Restart

FIRST_STEPS = 4
HUGE = 1e6  # no initial value of a parameter is as large
BY_SIZE = ("overflow", "learning-rate", "unknown")  # what too large a value looks like


class Unwritten:
    def __init__(self, config: Config, restart: Restart, started_with: StartMagnitudes):
        self._config, self._restart, self._started_with = config, restart, started_with
        self._answers = {}  # number of an optimizer -> (step of the alarm, its findings), or None: asked in vain

    def asked(self, alarm: Alarm) -> None:
        """A second process has been asked already: what the optimizer began with was bad."""
        self._answers[alarm["optimizer_ordinal"]] = None

    def explain(self, optimizer: Optimizer, alarm: Alarm) -> None:
        """Into an alarm that has been run again."""
        ordinal, cause = alarm.get("optimizer_ordinal"), alarm["cause"]
        if optimizer is None or alarm["rerun"] == "not-run" or ranks.several():
            return
        if ordinal in self._answers:
            if self._answers[ordinal] and cause["class"] in BY_SIZE:
                _follow(alarm, *self._answers[ordinal])
            return
        if alarm["rerun"] == "transient" and cause["class"] == "uninitialised-memory" and alarm["births"]:
            return  # found within the step
        suspects, by_chance = self._suspects(optimizer, alarm), _is_by_chance(alarm)
        if not self._is_in_doubt(alarm, suspects, by_chance) or not self._restart.is_possible():
            return
        self._answers[ordinal] = None
        found = self._restart.asked_of_memory(alarm, suspects)
        if not found or not found.get("births"):
            return
        if not by_chance and found["births"][0]["name"] not in suspects:
            return
        if found["memory"] != "buffer":
            self._answers[ordinal] = alarm["step"], found
        if cause["class"] == "uninitialised-memory" and alarm["births"]:
            return
        first: Alarm = {**alarm, "births": []}
        incident.apply(first, found)
        birth = first["births"][0]
        is_as_it_began = alarm["step"] == 0 and alarm["sink"]["kind"] in ("loss", "gradient")
        held = first_values.find(optimizer, found["memory"], birth["name"]) if is_as_it_began else None
        birth["outputs"] = listed(birth["name"], held) if held is not None else []
        alarm["births"], alarm["cause"] = [birth, *alarm["births"]], first["cause"]
        alarm["fix"], alarm["path"] = first["fix"], []

    def _suspects(self, optimizer, alarm):
        """Names of what was huge at the start, and of state that no step of the optimizer makes."""
        births = alarm["births"][:1]
        if alarm["cause"]["class"] == "corrupted-state":
            return [b["name"] for b in births if alarm["step"] == 0 and not b["op"] and b.get("name")]
        began = self._started_with.get(id(optimizer)) or {}
        named = zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer))
        return [name for name, p in named if began.get(id(p), 0.0) > HUGE]

    def _is_in_doubt(self, alarm, suspects, by_chance):
        """Would such memory explain it?"""
        cause = alarm["cause"]["class"]
        if alarm["step"] >= FIRST_STEPS:
            return False
        if cause == "uninitialised-memory" and not alarm["harmless"] and self._config.on_alarm in ("stop", "raise"):
            return False  # no later step asks
        is_open = cause in (*BY_SIZE, "uninitialised-memory", "corrupted-state")
        return by_chance or bool(suspects) and is_open


def _is_by_chance(alarm):
    """Did its result differ when it was run again, with nothing else that explains it?"""
    is_open = alarm["cause"]["class"] in (*BY_SIZE, "uninitialised-memory")
    return alarm["rerun"] == "transient" or alarm["rerun"] == "order-dependent" and is_open


def _follow(alarm, step, found):
    """A later step of a training that began so: its own reason is one more consequence."""
    name = found["births"][0]["name"]
    for experiment in alarm["cause"]["experiments"]:
        experiment.pop("confirms", None)  # of the other reason
    alarm["cause"] = {
        **alarm["cause"],
        "class": "uninitialised-memory",
        "confidence": "likely",
        "text": f"the training began with {name} in memory that nobody had written, as the alarm of step {step} "
        f"reports; here: {alarm['cause']['text']}",
    }
    alarm["fix"] = found["fix"]
