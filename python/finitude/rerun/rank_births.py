"""Who made the value, across machines: ranks that have run a step again together say over their store what they found,
as each machine has a report of its own. One that received the value names the rank and the line that made it.

Only ranks with a birth of their own send what they found, a few hundred bytes; all others say that they have come."""

from __future__ import annotations

import json
import time

from ..program import gathering, ranks
from ..report import merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Alarm, Vote

LIMIT_S = 30.0  # how long one that received the value waits for the others to have found theirs
MOST = 16  # births that are read
MOST_BYTES = 4096
_OF_BIRTH = "phase", "op", "file", "line"


def share(vote: Vote, alarm: Alarm) -> None:
    """Says what this rank found, and completes its alarm by what others did. Raises RuntimeError, ValueError, OSError:
    the store is gone."""
    if ranks.on_this_machine() == vote.size or not vote.goes or vote.parted:
        return
    store, key = vote.store, f"{vote.key}/births"
    found = gathering.Gathering(store, f"{key}/found", vote.rank, range(vote.size))
    is_received = alarm["cause"]["class"] == "other-rank"
    if alarm["births"] and not is_received:
        text = json.dumps({"rank": vote.rank, **_sent(alarm)})
        if len(text) <= MOST_BYTES:
            store.set(f"{key}/{store.add(f'{key}/made', 1)}", text)
    found.arrive()
    if not is_received:
        return
    until = time.monotonic() + LIMIT_S
    while not found.is_complete() and time.monotonic() < until:
        time.sleep(gathering.poll_s(vote.size))
    keys = [f"{key}/{number}" for number in range(1, 1 + min(MOST, store.add(f"{key}/made", 0)))]
    _complete(alarm, [json.loads(store.get(one)) for one in keys if store.check([one])])


def _sent(alarm):
    birth = alarm["births"][0]
    exchanges = [{k: one[k] for k in ("group", "number") if k in one} for one in birth.get("exchanges", ())]
    return {"sink": alarm["sink"], "birth": {**{k: birth[k] for k in _OF_BIRTH}, "exchanges": exchanges}}


def _complete(alarm: Any, others: list[dict[str, Any]]) -> None:
    """As one report of all ranks does it (src/incident/merge.cpp)."""
    own: Any = {"outcome": "clean", "reason": "", "watched": merge.nothing_watched(), "alarms": [], "advisories": []}

    def member(rank: int, one: Any) -> merge.Member:
        document: Any = {**own, "alarms": [{**one, "rank": rank}]}
        return merge.Member(f"rank-{rank}", document)

    made = [
        member(o["rank"], {**alarm, "sink": o["sink"], "births": [o["birth"]], "cause": {"class": "", "text": ""}})
        for o in others
    ]
    for one in merge.merged(own, [member(alarm["rank"], alarm), *made])["alarms"]:
        if one["rank"] == alarm["rank"]:
            alarm["cause"], alarm["fix"] = one["cause"], one["fix"]
