"""Was the value found where it was put in? The report of a run beside what was injected in it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from ..base.types import Document, FromFile

SILENT = "optimizer-state-overflow"  # an Inf in it stops a parameter and ruins nothing: no alarm, but reported
FOUND, ELSEWHERE, MISSED, HARMLESS, NOT_REACHED = "found", "elsewhere", "missed", "harmless", "not-reached"


def _steps_of(put, alarm):
    """The numbers that the step has by the optimizers of the alarm's class. What an optimizer computes belongs to the
    step that it has just counted."""
    return {s[2] - (put["phase"] == "optimizer") for s in put["steps"] if s[1] == alarm["optimizer"]}


def differences(put, alarm):
    """What the report says otherwise, as {what: (put in at, found at)}; empty where it says the very same."""
    birth = alarm["births"][0] if alarm["births"] else None
    if birth is None:
        return {"birth": ("one", "none")}
    found = {}
    steps = _steps_of(put, alarm)
    if alarm["step"] not in steps:
        found["step"] = (min(steps, default=None), alarm["step"])
    pairs = {"phase": (put["phase"], birth["phase"])}
    if put["phase"] == "state":
        if (
            birth["phase"] == "memory"
        ):  # finite when the last step ended, and no operation wrote it since: that is what was done
            del pairs["phase"]
        pairs["tensor"] = (put["name"], birth.get("name") or alarm["sink"]["name"])
    else:
        if put["phase"] != "data" or birth["op"]:  # of data a report names the line that made it or took it in
            pairs["op"] = (put["op"], birth["op"])
        if put["line"]:
            pairs["line"] = (f"{put['file']}:{put['line']}", f"{birth['file']}:{birth['line']}")
        if put["phase"] in ("forward", "backward"):
            pairs["module"] = (put["module"], birth.get("module") or "")
    found.update({what: pair for what, pair in pairs.items() if pair[0] != pair[1]})
    return found


def judge(put: dict[str, Any] | None, seen_bad: Collection[str], report: Document | None) -> tuple[str, dict[str, Any]]:
    """(verdict, differences). put: what was injected first, or None. seen_bad: kinds of sinks that plain torch found to
    be not finite. report: of the run, or None where it left none."""
    if put is None:
        return NOT_REACHED, {}
    if report is None:
        return MISSED, {"report": ("one", "none")}
    alarms: list[FromFile] = [*report["alarms"]] or [
        {**a, "optimizer": put["steps"][0][1], "sink": {"name": a["births"][0].get("name", "")}}
        for a in report.get("advisories", ())
        if a["kind"] == SILENT and a["births"] and put["steps"]
    ]
    if not alarms:
        return (MISSED if seen_bad else HARMLESS), {}
    different = differences(put, alarms[0])
    return (ELSEWHERE if different else FOUND), different
