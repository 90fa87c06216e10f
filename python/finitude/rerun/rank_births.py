"""Who made the value, across machines: ranks that have run a step again together, or recorded it, say over their store
what they found, as each machine has a report of its own. One that received the value names the rank and the line that
made it, and the first rank of each machine puts the alarms of other machines into its report.

Only ranks with a birth of their own send what they found, MOST_BYTES at most; all others say that they have come."""

from __future__ import annotations

import json
import os
import time

from .. import _native
from ..base import secrets
from ..base.plain_json import safe
from ..program import gathering, ranks
from ..report import capsule_alarm, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Alarm, Vote
    from ..report.document import Report

LIMIT_S = 8.0  # how long one that needs what the others found waits: less than PARTING_S in rank_vote.py
MOST = 16  # alarms that are read
MOST_BYTES = 32 << 10  # of one
_OF_BIRTH = "exchanges", "phase", "op", "file", "line", "module", "source"


def share(vote: Vote, alarm: Alarm, report: Report) -> None:
    """Says what this rank found, and completes its alarm and report by what others did, while the store is there."""
    if not ranks.on_several_machines() or not vote.is_joined() or vote.parted:
        return
    try:
        _share(vote, alarm, report)
    except (RuntimeError, ValueError, OSError):
        pass  # the store is gone, and whoever kept it


def _share(vote, alarm, report):
    store, key = vote.store, f"{vote.key}/births"
    found = gathering.Gathering(store, f"{key}/found", vote.rank, range(vote.size))
    is_received = alarm["cause"]["class"] == "other-rank"
    if alarm["births"] and not is_received and (text := _sent(alarm, bool(report.config.redact))):
        store.set(f"{key}/{store.add(f'{key}/made', 1)}", text)
    found.arrive()
    is_first = ranks.is_first_of_machine()
    if not is_received and not is_first:
        return
    until = time.monotonic() + LIMIT_S
    while not found.is_complete() and time.monotonic() < until:
        time.sleep(gathering.poll_s(vote.size))
    keys = [f"{key}/{number}" for number in range(1, 1 + min(MOST, store.add(f"{key}/made", 0)))]
    sent = [_read(store.get(one)) for one in keys if store.check([one])]
    others = [one for one in sent if one is not None and one["rank"] != alarm["rank"]]
    if is_received:
        _complete(alarm, others)
    if is_first:
        merge.add_elsewhere(report.elsewhere, alarm, [o for o in others if not ranks.is_on_this_machine(o["rank"])])


def _sent(alarm, redact):
    """As JSON: with all that is known of the first birth, or as much as there is room for; no more than the report of
    this machine says, since that of another one may have no --redact."""
    known = {k: v for k, v in alarm.items() if k not in ("optimizer_ordinal", "unproven")}
    known.update(births=alarm["births"][:1], capsule=None, host="" if redact else os.uname().nodename)
    whole = secrets.hidden(capsule_alarm.redacted(known) if redact else known)
    short = {**whole, "path": [], "gradients": None, "cause": {**whole["cause"], "experiments": []}}
    birth = {k: v for k, v in whole["births"][0].items() if k in _OF_BIRTH}
    texts = (json.dumps(safe(one), allow_nan=False) for one in (whole, short, {**short, "births": [birth]}))
    return next((text for text in texts if len(text) <= MOST_BYTES), "")


def _read(text) -> Any:
    """An alarm of another rank; None for what no report may hold: it may be another version's."""
    try:
        alarm: Any = json.loads(text) if len(text) <= MOST_BYTES else None
        problem = _native.report_problem(json.dumps(_report([alarm]), allow_nan=False))
    except (ValueError, RecursionError):
        return None
    return alarm if not problem and {"rank", "host"} <= set(alarm) and alarm["births"] and alarm["cause"] else None


def _report(alarms) -> Any:
    plain = {"outcome": "alarm" if alarms else "clean", "reason": "", "watched": merge.nothing_watched()}
    return {**json.loads(_native.report_head("{}")), **plain, "alarms": alarms, "advisories": []}


def _complete(alarm: Any, others: list[Any]) -> None:
    """As one report of all ranks does it (src/incident/merge.cpp)."""
    members = [merge.Member(f"rank-{one['rank']}", _report([one])) for one in (alarm, *others)]
    for one in merge.merged(_report([]), members)["alarms"]:
        if one["rank"] == alarm["rank"]:
            alarm["cause"], alarm["fix"] = one["cause"], one["fix"]
