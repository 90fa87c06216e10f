"""One document for a bad step of several ranks, `step-NNNNNN.json` in the folder of the run: which capsule each rank
left, which rank had the value first, and the process groups of the step. Torch-free; the folder may be anyone's."""

from __future__ import annotations

import os
import re

from ..base import checked_json, pages, plain_json
from ..report import merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..base.types import FromFile
    from ..report.merge import Member

KIND = "step manifest"
NAME = re.compile(r"step-[0-9]{6,12}(-optimizer-[0-9]{1,6})?(-[0-9]{1,2})?\.json")
MAX_BYTES = 64 << 20
MAX_RANKS = 1 << 16
MAX_GROUPS = 1 << 12
MAX_TEXT = 4096
_CAPSULE = re.compile(r"(rank-[0-9]{1,9}(?:-[0-9]{1,9})?)/(step-[0-9]{6,12}[a-z0-9-]{0,40})")


class Unusable(ValueError):
    """Why the file is no manifest of a step."""


def of_run(directory: str, found: Sequence[Member] | None = None) -> dict[str, dict[str, Any]]:
    """By name of the file the manifest of each bad step of which a rank left a capsule. found: what
    merge.members(directory) gave."""
    ranked = [one for one in (merge.members(directory) if found is None else found) if one.rank is not None]
    by_step: dict[str, dict[int, Any]] = {}
    for one in ranked:
        for name, alarm in _kept_by(one):
            # Of a rank started again the later one. A rank of another machine has no folder here.
            rank = alarm["rank"] if "host" in alarm else one.rank or 0
            by_step.setdefault(name, {})[rank] = (one, alarm)
    return {
        f"{name}.json": document
        for name, left in sorted(by_step.items())
        if (document := _manifest(left, ranked)) is not None
    }


def write(directory: str, found: Sequence[Member]) -> list[str]:
    """Writes those files. Their paths."""
    written = []
    for name, document in of_run(directory, found).items():
        path = os.path.join(directory, name)
        if pages.write(path, checked_json.text_of(plain_json.safe(document))):
            written.append(path)
    return written


def read(path: str) -> FromFile:
    """What a file from elsewhere holds, where it is a manifest: every key is there and of its type, each rank is listed
    once, and a capsule lies in a folder of its rank. Raises OSError, or Unusable."""
    try:
        document = plain_json.read(path, MAX_BYTES, checked_json.is_damaged)
    except ValueError as e:
        raise Unusable(str(e)) from e
    check(document)
    return document


def check(document: Any) -> None:
    """Raises Unusable where it is no manifest."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise Unusable("it is no manifest of a step")
    size = document.get("world_size")
    if not _is_number(size, 1, MAX_RANKS):
        raise Unusable(f"world_size is no number from 1 to {MAX_RANKS}")
    if not _is_number(document.get("step"), 0, 1 << 62):
        raise Unusable("step is no number")
    listed = document.get("ranks")
    if not isinstance(listed, list) or len(listed) != size:
        raise Unusable("ranks does not list each rank")
    for number, one in enumerate(listed):
        if not isinstance(one, dict) or not _is_number(one.get("rank"), number, number):
            raise Unusable("ranks are not in order")
        if not isinstance(one.get("first"), bool) or not all(_is_text(one.get(k)) for k in ("why", "cause", "sink")):
            raise Unusable(f"what is said of rank {number} is damaged")
        place = one.get("capsule")
        found = _CAPSULE.fullmatch(place) if isinstance(place, str) else None
        if place is not None and (found is None or found.group(1).split("-")[1] != str(number)):
            raise Unusable(f"the capsule of rank {number} is no folder of it")
    _check_groups(document.get("groups"), size)


def _check_groups(groups, size):
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise Unusable("groups is no list that can be used")
    names = set()
    for one in groups:
        if not isinstance(one, dict) or not all(_is_text(one.get(k)) for k in ("name", "description", "backend")):
            raise Unusable("a group is damaged")
        of = one.get("ranks")
        if not isinstance(of, list) or not of or not all(_is_number(r, 0, size - 1) for r in of):
            raise Unusable("a group has other ranks than the run")
        if len(set(of)) != len(of) or one["name"] in names:
            raise Unusable("a group, or a rank of it, is listed twice")
        names.add(one["name"])


def capsules(path: str, document: Mapping[str, Any]) -> dict[int, str]:
    """By rank the folder of its capsule. path: of the manifest. A folder that lies elsewhere by a link is skipped."""
    root = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    found = {}
    for one in document["ranks"]:
        if one["capsule"] is None:
            continue
        folder = os.path.join(root, *one["capsule"].split("/"))
        if os.path.realpath(folder) == folder and os.path.isdir(folder):
            found[one["rank"]] = folder
    return found


def newest_of(directory: str) -> str | None:
    """The path of the manifest of the last step in the folder of a run; None: there is none."""
    try:
        names = [name for name in os.listdir(directory) if NAME.fullmatch(name)]
    except OSError:
        return None
    if not names:
        return None
    return os.path.join(directory, max(names, key=lambda name: (int(name[5:].split(".")[0].split("-")[0]), name)))


def one_line(path: str, document: Mapping[str, Any]) -> str:
    """What a person is to read of it. path: as it is shown."""
    kept = sum(one["capsule"] is not None for one in document["ranks"])
    first = [str(one["rank"]) for one in document["ranks"] if one["first"]]
    text = f"step {document['step']}: capsules of {kept} of {document['world_size']} ranks in {path}"
    if len(first) > 1:
        return f"{text}; values were made on ranks {', '.join(first[:8])}"
    return text + (f"; the value came from rank {first[0]}" if first else "")


def _kept_by(member):
    """(name of the folder, alarm) of each alarm and dropped step; without a capsule the name is made of the step."""
    document = member.document or {}
    for alarm in [*document.get("alarms", []), *document.get("advisories", [])]:
        if not isinstance(alarm, dict) or "step" not in alarm or "sink" not in alarm:
            continue
        place = alarm.get("capsule")
        yield (os.path.basename(place) if place else f"step-{alarm['step']:06d}"), alarm


def _manifest(left, ranked):
    kept = {
        rank: f"{one.name}/{os.path.basename(alarm['capsule'])}"
        for rank, (one, alarm) in left.items()
        if alarm.get("capsule") and _CAPSULE.fullmatch(f"{one.name}/{os.path.basename(alarm['capsule'])}")
    }
    about = {}
    for rank in kept:
        try:
            about[rank] = plain_json.read(
                os.path.join(left[rank][0].directory, kept[rank].split("/")[1], "capsule.json")
            )
        except (OSError, ValueError):
            continue
    sizes = [a["ranks"] for a in about.values() if isinstance(a, dict) and _is_number(a.get("ranks"), 1, MAX_RANKS)]
    size = max([1 + max(left), *sizes])
    if not about or size < 2:
        return None
    any_alarm = next(iter(left.values()))[1]
    document = {
        "kind": KIND,
        "schema": 1,
        "step": any_alarm["step"],
        "optimizer": any_alarm.get("optimizer", ""),
        "world_size": size,
        "groups": _groups(about.values(), size),
        "ranks": [
            _of_rank(rank, left.get(rank), kept.get(rank) if rank in about else None, ranked) for rank in range(size)
        ],
    }
    try:
        check(document)
    except Unusable:
        return None
    return document


def _of_rank(rank, found, capsule, ranked):
    alarm = found[1] if found is not None else {}
    cause = (alarm.get("cause") or {}).get("class", "")
    births = alarm.get("births") or []
    is_first = bool(births) and cause != "other-rank" and births[0].get("phase") != "communication"
    sink = alarm.get("sink") or {}
    return {
        "rank": rank,
        "capsule": capsule,
        "why": "" if capsule is not None else _why_missing(rank, found, ranked),
        "first": is_first,
        "cause": cause,
        "sink": f"{sink.get('kind', '')} {sink.get('name', '')}".strip()[:MAX_TEXT],
    }


def _why_missing(rank, found, ranked):
    """Of a rank that left none."""
    of_rank = [one for one in ranked if one.rank == rank]
    if not of_rank:
        return "its processes ran on another machine, or left no folder"
    if found is None:
        missing = next((one.missing for one in of_rank if one.missing), "")
        return f"it left no report: {missing}"[:MAX_TEXT] if missing else "it reported no alarm at this step"
    alarm, prefix = found[1], f"a capsule of step {found[1]['step']}: "
    listed = (found[0].document or {}).get("watched", {}).get("not_watched") or []
    if (text := next((text for text in listed if text.startswith(prefix)), None)) is not None:
        return text[len(prefix) :][:MAX_TEXT]
    if (alarm.get("cause") or {}).get("class") == "other-rank" and not alarm.get("births"):
        return "what this rank held was finite, so its step was not recorded"
    return "its step was not run again"


def _groups(abouts, size):
    """As the capsules of all ranks have them; each once."""
    found: dict[str, Any] = {}
    for about in abouts:
        for group in about.get("groups") or [] if isinstance(about, dict) else []:
            try:
                _check_groups([group], size)
            except Unusable:
                continue
            found.setdefault(group["name"], {key: group[key] for key in ("name", "description", "backend", "ranks")})
    return [found[name] for name in sorted(found)][:MAX_GROUPS]


def _is_number(value, least, most):
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_text(value):
    return isinstance(value, str) and len(value) <= MAX_TEXT
