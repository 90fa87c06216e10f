"""First steps that are bad by memory that nobody had written, and that held something finite: it was too large, or it
holds something else in every run. A second process is asked how much of what the training began with is such memory."""

from ..findings import findings
from ..program import ranks
from ..program.counts import statistic
from . import beginning, restart

FIRST_STEPS = 4
HUGE = 1e6  # no initial value of a parameter is as large
BY_SIZE = ("overflow", "learning-rate", "unknown")  # what too large a value looks like


class Unwritten:
    def __init__(self):
        self._told = {}  # number of an optimizer -> (step of the alarm, its findings), or None: asked in vain

    def asked(self, alarm):
        """A second process has been asked already: what the optimizer began with was bad."""
        self._told[alarm["optimizer_ordinal"]] = None

    def tell(self, session, optimizer, alarm):
        """Into an alarm that has been run again."""
        ordinal, cause = alarm.get("optimizer_ordinal"), alarm["cause"]
        if optimizer is None or alarm["rerun"] == "not-run" or ranks.several():
            return
        if ordinal in self._told:
            if self._told[ordinal] and cause["class"] in BY_SIZE:
                _follow(alarm, *self._told[ordinal])
            return
        if not _is_in_doubt(session, optimizer, alarm) or not restart.is_possible(session):
            return
        self._told[ordinal] = None
        found = restart.asked_of_memory(session, alarm)
        if not found or not found.get("births"):
            return
        if found["memory"] != "buffer":
            self._told[ordinal] = alarm["step"], found
        if cause["class"] == "uninitialised-memory" and alarm["births"]:
            return
        first = {**alarm, "births": []}
        findings.apply(first, found)
        birth = first["births"][0]
        is_as_it_began = alarm["step"] == 0 and alarm["sink"]["kind"] in ("loss", "gradient")
        held = beginning.find(optimizer, found["memory"], birth["name"]) if is_as_it_began else None
        birth["outputs"] = [s] if held is not None and (s := statistic(birth["name"], held)) else []
        alarm.update(births=[birth, *alarm["births"]], cause=first["cause"], fix=first["fix"], path=[])


def _is_in_doubt(session, optimizer, alarm):
    """Would such memory explain it? What came out the same again is asked about only where a value was huge at the
    start, or is one that no step of the optimizer makes."""
    if alarm["step"] >= FIRST_STEPS:
        return False
    cause = alarm["cause"]["class"]
    if cause == "uninitialised-memory" and not alarm["harmless"] and session.config.on_alarm in ("stop", "raise"):
        return False  # no later step asks
    if alarm["rerun"] in ("transient", "order-dependent"):
        return True
    if cause == "corrupted-state":
        return alarm["step"] == 0 and alarm["births"] and not alarm["births"][0]["op"]
    began = max((session.started_with.get(id(optimizer)) or {}).values(), default=0.0)
    return began > HUGE and cause in (*BY_SIZE, "uninitialised-memory")


def _follow(alarm, step, found):
    """A later step of a training that began so: its own reason is one more consequence."""
    name = found["births"][0]["name"]
    for experiment in alarm["cause"]["experiments"]:
        experiment.pop("confirms", None)  # of the other reason
    alarm["cause"] = {
        **alarm["cause"],
        "class": "uninitialised-memory",
        "confidence": "likely",
        "text": f"the training began with {name} in memory that nobody had written, as the alarm of step {step} tells; "
        f"here: {alarm['cause']['text']}",
    }
    alarm["fix"] = found["fix"]
