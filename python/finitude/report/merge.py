"""One report of all processes of a run: each that trained left its own below the directory of the run. Torch-free."""

from __future__ import annotations

import math
import os
import re
import struct

from ..base import pages, plain_file, plain_json
from .capsule_alarm import forget_removed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Advisory, Document, Watched

MAX_ALARMS = 1000  # src/show/show.h: what a reader accepts
MAX_ADVISORIES = 10_000
# an advisory: what lay around as an exception ended the program, of which no cause is known
SEEN = "not-finite-at-the-end"
MAX_BYTES = 1 << 30
_NUMBER = re.compile(r"[0-9]{1,9}(-|$)")  # of a rank or process, and what tells two of them apart
NOT_FINITE = (
    "handled-by-script",
    "killed",
    "clipping",
    "swallowed-overflow",
    "optimizer-state-overflow",
    "allowed",
)  # kinds of advisories
COUNTS = ("optimizers", "steps", "backward_calls", "gradients_scanned", "scaler_skips", "handled_by_script")


def nothing_watched() -> Watched:
    return {
        "optimizers": 0,
        "steps": 0,
        "backward_calls": 0,
        "gradients_scanned": 0,
        "scaler_skips": 0,
        "handled_by_script": 0,
    }


class Member:
    """What one process left in its directory."""

    def __init__(self, directory: str, document: Document | None = None, missing: str = ""):
        self.directory, self.document, self.missing = directory, document, missing
        self.name = os.path.basename(directory)

    @property
    def rank(self) -> int | None:
        """Its rank, or None for a process that is none of several."""
        word, _, number = self.name.partition("-")
        return int(number.partition("-")[0]) if word == "rank" else None

    @property
    def label(self):
        return f"rank {self.rank}" if self.rank is not None else f"process {self.name.partition('-')[2]}"


def _read(path):
    try:
        found = plain_json.read(path, MAX_BYTES)
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def steps_in_ring(path: str) -> tuple[int, int, int]:
    """(how many steps a process took, how many of them its ring holds, how many of those have a loss that is not finite
    or are an alarm): docs/format/ring.md."""
    try:
        with plain_file.opened(path) as f:
            header = struct.unpack("<8s4I5Q", f.read(64))
            f.seek(4096)
            data = f.read(MAX_BYTES)
    except (OSError, struct.error):
        return 0, 0, 0
    magic, version, count = header[0], header[1], header[9]
    if magic != b"FitRing\n" or version != 1:
        return 0, 0, 0
    slots = [data[at : at + 64] for at in range(0, len(data) - 63, 64)]
    held = [struct.unpack("<QQIId", s[:32]) for s in slots if s[:8] != bytes(8)]
    return count, len(held), sum(1 for _, _, _, flags, loss in held if flags & ALARM or not math.isfinite(loss))


ALARM = 8  # of a slot's flags


KILLED = "killed.json"  # in the folder of a process: the signal that ended it, by who saw it


def note_killed(folder: str, signal: str) -> None:
    """signal: its name."""
    try:
        pages.write_whole(os.path.join(folder, KILLED), pages.as_json({"signal": signal}).encode())
    except OSError:
        pass


def _signal_of(folder):
    """The signal that ended a process; "": not known."""
    found = _read(os.path.join(folder, KILLED)) or {}
    return str(found.get("signal", ""))[:32]


def _without_last_word(document, folder, steps, is_rank):
    """Into the report of a process that was killed while it trained: how, as far as that is known."""
    signal = _signal_of(folder)
    text = f"killed by {signal}" if signal else "ended without a last word"
    if document.pop("under_way", None) is not None:
        document["watched"].setdefault("not_watched", []).append(
            f"{text}: what it reported until then is included, later results are lost"
        )
    if signal and (is_rank or signal != "SIGTERM"):  # which ends the workers of a pool
        document["advisories"].append(
            {
                "kind": "killed",
                "step": None,
                "births": [],
                "cause": None,
                "text": f"{'a rank' if is_rank else 'a process of the run'} was killed by {signal} after {steps} steps",
            }
        )
    return document


def _of_killed(steps, held, bad, signal):
    """The report that a process might have left which was killed after so many steps."""
    losses = f"{bad} of them with a loss that is not finite or an alarm" if bad else "all with finite losses"
    how = (
        f"killed by {signal}"
        if signal
        else "ended before it could write a report, as a worker does that a pool kills at its end"
    )
    text = f"{how}; the last {held} of its {steps} steps are in steps.ring, {losses}; other counts are lost"
    watched = {**dict.fromkeys(COUNTS, 0), "optimizers": 1, "steps": steps, "not_watched": [text]}
    return {"outcome": "clean", "reason": "", "watched": watched, "alarms": [], "advisories": []}


def _is_count(value):
    return type(value) is int and 0 <= value < 1 << 63


def _has(value, **types):
    return isinstance(value, dict) and all(isinstance(value.get(key), of) for key, of in types.items())


def is_alarm(alarm: Any) -> bool:
    return (
        _has(alarm, sink=dict, births=list, cause=dict)
        and _has(alarm["sink"], kind=str, name=str)
        and _has(alarm["cause"], **{"class": str})
        and _is_count(alarm.get("step"))
        and _is_count(alarm.get("rank", 0))
        and all(_has(birth, phase=str) for birth in alarm["births"])
    )


def _is_shallow(value, left=32):  # as src/show/json_file.cpp has it
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_is_shallow(one, left - 1) for one in inner if isinstance(one, (dict, list)))


def is_report(document: Any) -> bool:
    """What merging relies on: a report may have been left by anything."""
    return (
        _is_shallow(document)
        and _has(document, watched=dict, outcome=str, reason=str, alarms=list, advisories=list)
        and all(_is_count(document["watched"].get(key)) for key in COUNTS)
        and all(_is_count(document["watched"].get(key, 1)) for key in ("ranks", "unapplied"))
        and all(isinstance(text, str) for text in _listed(document["watched"].get("not_watched", [])))
        and all(map(is_alarm, document["alarms"]))
        and all(_has(advisory, kind=str) for advisory in document["advisories"])
    )


def _listed(value):
    return value if isinstance(value, list) else [None]


def settled(document: Document) -> Document:
    """Of a process that ended while it wrote a capsule: the report knows it where it came to be."""
    for alarm in document["alarms"]:
        if (
            isinstance(alarm, dict)
            and alarm.pop("capsule_pending", False)
            and not os.path.isfile(os.path.join(str(alarm.get("capsule")), "capsule.json"))
        ):
            alarm["capsule"] = None
    forget_removed([*document["alarms"], *document.get("advisories", ())])  # it ended without its last word
    return document


def member_folders(directory: str) -> list[str]:
    """Of the processes of the run that trained."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    parts = [(name, *name.partition("-")[::2]) for name in names]
    return [
        os.path.join(directory, name)
        for name, word, number in parts
        if word in ("rank", "pid") and _NUMBER.match(number)
    ]


def members(directory: str) -> list[Member]:
    """The processes of the run that trained, ranks first and in order."""
    found = []
    for path in member_folders(directory):
        document = _read(os.path.join(path, "report.json"))
        if document is not None and not is_report(document):
            document = None
        document = document and settled(document)
        unwatched = _read(os.path.join(path, "unwatched.json")) or {}
        is_over = document is not None and "under_way" not in document
        ring = (0, 0, 0) if is_over else steps_in_ring(os.path.join(path, "steps.ring"))
        signal = "" if is_over else _signal_of(path)
        if document is None and ring[0] and not unwatched:
            document = _of_killed(*ring, signal)
        if document is not None and not is_over:
            document["watched"]["steps"] = max(document["watched"]["steps"], ring[0])
            _without_last_word(document, path, ring[0], os.path.basename(path).startswith("rank-"))
        missing = str(
            unwatched.get("reason", f"killed by {signal}" if signal else "ended before it could write a report")
        )
        found.append(Member(path, document, "" if document else missing))
    return sorted(found, key=lambda m: (m.rank is None, m.rank or 0, m.name))


def _counts(documents):
    return {key: sum(d["watched"][key] for d in documents) for key in COUNTS}


def _watched(own, found):
    """Ranks take their steps together, so they count once; what each of them read is added up."""
    by_rank = {}
    for member in found:
        if member.document and member.rank is not None:
            by_rank.setdefault(member.rank, []).append(member.document)
    ranks = [_counts(documents) for documents in by_rank.values()]
    total = _counts([own] + [m.document for m in found if m.document and m.rank is None])
    for key in COUNTS if ranks else ():
        total[key] += (sum if key == "gradients_scanned" else max)(r[key] for r in ranks)
    sizes = [m.document["watched"].get("ranks", 1) for m in found if m.document] + [
        own["watched"].get("ranks", 1),
        len(by_rank),
    ]
    if max(sizes) > 1:
        total["ranks"] = max(sizes)
    if unapplied := max(d["watched"].get("unapplied", 0) for d in [own] + [m.document for m in found if m.document]):
        total["unapplied"] = unapplied
    return {**total, "not_watched": _not_watched(own, found)}


def _not_watched(own, found):
    said = list(own["watched"].get("not_watched", []))
    texts = {}
    for member in found:
        for text in member.document["watched"].get("not_watched", []) if member.document else [member.missing]:
            texts.setdefault(text, []).append(member)
    for text, of in texts.items():
        everywhere = len(of) == len(found) and len(of) > 1
        said.append(text if everywhere else f"{', '.join(m.label for m in of)}: {text}")
    return said


def _order(alarm):
    """In time; of one step first the rank that tells most: it made the bad value, its own loss was bad, or it has a
    birth."""
    return (
        alarm["step"],
        _is_received(alarm),
        alarm["sink"]["kind"] != "loss",
        not alarm["births"],
        alarm.get("rank", 0),
    )


def _is_received(alarm):
    """Did the bad value come to this rank from another?"""
    return alarm["cause"]["class"] == "other-rank"


def _made_at(alarm):
    """Where a rank made the bad value, in words."""
    birth = alarm["births"][0]
    file, line, op = birth.get("file"), birth.get("line"), birth.get("op")
    at = f" at {os.path.basename(file)}:{line}" if file and line else ""
    return f", where {op} made it{at}" if op and at else f", whose {alarm['sink']['name']} was not finite at this step"


def _name_the_other(alarms):
    """What came from another rank came from the one that has a birth of its own at the same step."""
    own = {a["step"]: a for a in reversed(alarms) if a["births"] and a["births"][0]["phase"] != "communication"}
    for alarm in alarms:
        other = own.get(alarm["step"])
        if other is not None and _is_received(alarm) and other["rank"] != alarm["rank"]:
            text = f"the value came from rank {other['rank']}{_made_at(other)}"
            alarm["cause"] = {**alarm["cause"], "confidence": "likely", "text": text}
            birth, fix = other["births"][0], alarm.get("fix")
            if fix and not fix.get("verified") and birth.get("file"):
                alarm["fix"] = {
                    **fix,
                    "text": f"see the birth on rank {other['rank']}",
                    "file": birth["file"],
                    "line": birth.get("line") or 0,
                }


def trained(document: Document) -> bool:
    watched = document["watched"]
    return bool(watched["steps"] or watched["backward_calls"] or watched["scaler_skips"] or document["alarms"])


def merged(own: Document, found: list[Member]) -> Document:
    """`own`, the document of the process that was started, with what the others left in it."""
    documents = [m.document for m in found if m.document]
    if not found:
        return own
    everyone = ([own] if trained(own) else []) + documents
    result: Document = {**own}
    result["torch"] = own.get("torch") or next((d["torch"] for d in documents if d.get("torch")), "")
    result["finitude"] = own.get("finitude") or next((d["finitude"] for d in documents if d.get("finitude")), "")
    if not trained(own):
        result["script"] = next((d["script"] for d in documents if d.get("script")), own.get("script", ""))
    alarms = sorted((a for d in everyone for a in d["alarms"]), key=_order)
    _name_the_other(alarms)
    advisories: list[Advisory] = [
        a if m is None or m.rank is None else {**a, "rank": m.rank}
        for m, d in [(None, own)] + [(m, m.document) for m in found if m.document]
        for a in d["advisories"]
    ]
    if len(alarms) > MAX_ALARMS:
        advisories.append(
            {
                "kind": "alarms-left-out",
                "step": None,
                "births": [],
                "cause": None,
                "text": f"{len(alarms) - MAX_ALARMS} alarms more than a report holds are not listed",
            }
        )
    result["watched"] = _watched(own, found)
    result["alarms"], result["advisories"] = alarms[:MAX_ALARMS], advisories[-MAX_ADVISORIES:]
    result["outcome"], result["reason"] = "clean", ""
    if alarms:
        result["outcome"], result["reason"] = "alarm", alarms[0].get("text", "")
    elif not documents and own["outcome"] == "unwatched":
        result["outcome"], result["reason"] = "unwatched", f"{found[0].label}: {found[0].missing}"
    elif everyone and all(d["outcome"] == "unwatched" for d in everyone):
        result["outcome"], result["reason"] = "unwatched", everyone[0]["reason"]
    result["failures"] = [one for d in [own, *documents] for one in d.get("failures") or ()][:MAX_ADVISORIES]
    result["unwatched_from"] = min(
        (at for d in [own, *documents] if (at := d.get("unwatched_from")) is not None and _is_count(at)), default=None
    )
    traces = [d["trace"] for d in everyone if d.get("trace")]
    if len(traces) == 1:
        result["trace"] = traces[0]
    return result


def closing_line(document: Document, left_out: int = 0, place: str = "") -> str:
    """The line that every run ends with. left_out: alarms past what a report holds. place: of the report, or ""."""
    watched = document["watched"]

    def counted(n, word, several=None):
        return f"{n} {word if n == 1 else several or word + 's'}"

    parts = [
        counted(watched["steps"], "step")
        + (f" on {watched['ranks']} ranks" if watched.get("ranks", 1) > 1 else "")
        + " watched",
        f"{watched['gradients_scanned']} gradients scanned",
    ]
    if watched["scaler_skips"]:
        parts.append(f"{watched['scaler_skips']} skipped by the GradScaler")
    if watched["handled_by_script"]:
        parts.append(counted(watched["handled_by_script"], "bad step") + " handled by the script")
    if document["outcome"] == "unwatched":
        parts = [f"not watched: {document['reason']}"]
    elif document["alarms"]:
        parts.append(counted(len(document["alarms"]) + left_out, "alarm"))
    others = [a for a in document["advisories"] if a["kind"] != "handled-by-script" or not watched["handled_by_script"]]
    at_the_end = [a["text"] for a in others if a["kind"] == SEEN]
    if document["outcome"] == "clean":
        parts += at_the_end[:1]
        bad_seen = at_the_end or watched.get("unapplied") or watched["handled_by_script"]
        if not bad_seen and not any(a["kind"] in NOT_FINITE for a in others):
            # Without an optimizer nobody reads the gradients, nor what the last of them was used for.
            is_read = watched["optimizers"] or watched["gradients_scanned"]
            parts.append("all finite" if is_read else "losses all finite")
    if document["outcome"] != "unwatched":
        if watched.get("unapplied"):
            parts.append(f"the last {watched['unapplied']} applied by no step")
        if others:
            parts.append(counted(len(others), "advisory", "advisories"))
    if document.get("unwatched_from") is not None and document["outcome"] != "unwatched":
        parts.append(f"not watched from step {document['unwatched_from']} on: an internal failure of the gate")
    if failures := document.get("failures"):
        parts.append(
            f"{counted(len(failures), 'internal failure')} that "
            f"cost{'s' if len(failures) == 1 else ''} part of an explanation "
            f"({failures[0]['text']} at {failures[0]['where']})"
        )
    if watched.get("not_watched"):
        parts.append("not watched: " + "; ".join(watched["not_watched"]))
    return "finitude: " + ", ".join(parts) + (f". Report: {place}" if place else ".")
