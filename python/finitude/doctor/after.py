"""Reads what a run left. Hostile input: bounded, checked by the engine, never evaluated."""

from __future__ import annotations

import contextlib
import json
import os
import shlex

from ..base import plain_file
from ..capsules import pack
from ..report import merge, run_folder
from .facts import Replay, Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_BYTES = 256 << 20
MAX_MEMBERS = 1024
MAX_CAPSULES = 64
MAX_REPLAYED = 64 << 20  # bytes of a capsule that is computed again unasked
CAPSULE = "finitude capsule"


class Unreadable(Exception):
    """Says what cannot be read, and why."""


class NothingThere(Unreadable):
    """The path holds nothing that a run leaves."""


def _json(path):
    try:
        with plain_file.opened(path) as f:
            data = plain_file.first(f, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Unreadable(f"{path} is larger than {MAX_BYTES} bytes; no file of Finitude is")
        document = json.loads(data.decode("utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as e:
        raise Unreadable(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from None
    if not isinstance(document, dict):
        raise Unreadable(f"{path} is not a report")
    return document


def _engine():
    import torch  # noqa: F401  the engine's libraries

    from .. import _native

    return _native


def _checked(document, path):
    """The report as the engine understands it; what a check reads of it has its type."""
    problem = _engine().report_problem(json.dumps(document))
    if problem:
        raise Unreadable(f"{path} is not a report: {problem}")
    return document


def _capsule(path):
    about = _json(path)
    if about.get("kind") != CAPSULE or about.get("schema") != 1 or not isinstance(about.get("alarm"), dict):
        raise Unreadable(f"{path} is not the description of a capsule")
    alarm = about["alarm"]
    births = alarm.get("births")
    for birth in births if isinstance(births, list) else []:  # a redacted one has no sources
        for one in (birth, birth.get("forward")) if isinstance(birth, dict) else ():
            if isinstance(one, dict):
                one.setdefault("file", "")
                one.setdefault("source", "")
    document = {
        "schema": 1,
        "outcome": "alarm",
        "reason": "",
        "alarms": [alarm],
        "advisories": [],
        "watched": dict.fromkeys(
            ("optimizers", "steps", "backward_calls", "gradients_scanned", "scaler_skips", "handled_by_script"), 0
        ),
    }
    return Run(_checked(document, path), capsules=[about], directory=os.path.dirname(path), is_capsule=True)


def _ring(path):
    try:
        return _engine().read_ring(path)["steps"]
    except ValueError as e:
        raise Unreadable(f"{path} cannot be read: {e}") from None


def _descriptions(folders):
    """Of the capsules below a run and its processes; one that cannot be read is skipped: its alarm is in the report as
    well."""
    found = []
    for folder in folders:
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            about = os.path.join(entry.path, "capsule.json")
            if (
                entry.name.startswith("step-")
                and ".partial-" not in entry.name
                and os.path.isfile(about)
                and len(found) < MAX_CAPSULES
            ):
                try:
                    one = _json(about)
                except Unreadable:
                    continue
                if one.get("kind") == CAPSULE:
                    found.append(one)
    return found


def _has_float16(about):
    births = Run.part(about, "alarm").get("births")
    uses = (
        [
            use
            for birth in births
            if isinstance(birth, dict)
            for key in ("inputs", "outputs")
            for use in (birth.get(key) if isinstance(birth.get(key), list) else [])  # type: ignore[union-attr]
        ]
        if isinstance(births, list)
        else []
    )
    return Run.part(about, "flags").get("autocast") == "float16" or any(
        isinstance(u, dict) and u.get("dtype") == "float16" for u in uses
    )


def replayed(folder: str, about: dict[str, Any]) -> tuple[dict[str, Replay], str]:
    """(replays, why there are none or ""): a capsule as it was recorded, in float32, with deterministic kernels, and
    where its bad value was born in float16, in bfloat16."""
    files = Run.part(about, "files")
    size = sum(f["bytes"] for f in files.values() if isinstance(f, dict) and isinstance(f.get("bytes"), int))
    if about.get("redacted"):
        return {}, "a redacted capsule holds no values to compute from"
    if "tape.bin" not in files or not os.path.isfile(os.path.join(folder, "tape.bin")):
        return {}, "it holds no tape"
    if size > MAX_REPLAYED:
        return {}, f"{size >> 20} MB take a while: finitude replay {shlex.quote(folder)}"
    engine, found = _engine(), {}
    ways = [
        ("as recorded", ["--times", "2"]),
        ("float32", ["--dtype", "float32"]),
        ("deterministic", ["--deterministic"]),
    ]
    if _has_float16(about):
        ways.append(("bfloat16", ["--dtype", "bfloat16"]))
    for name, words in ways:
        code, out, err, _ = engine.replay_command([*words, folder])
        if code not in (0, 1):
            if name == "as recorded":
                return {}, (err or out).strip()
            continue
        found[name] = Replay(code, out)
    return found, ""


def _directory(path):
    """One run for the directory itself, and one for each process of it that left a ring of its own."""
    report, ring = os.path.join(path, "report.json"), os.path.join(path, "steps.ring")
    has_report, has_ring = os.path.isfile(report), os.path.isfile(ring)
    members = sorted(
        e.path
        for e in os.scandir(path)
        if e.is_dir(follow_symlinks=False)
        and e.name.startswith(("rank-", "pid-"))
        and os.path.isfile(os.path.join(e.path, "steps.ring"))
    )[:MAX_MEMBERS]
    if not has_report and not has_ring and not members and not os.path.isfile(os.path.join(path, run_folder.STARTED)):
        raise NothingThere(f"{path} holds no report, no ring of steps and no capsule")
    document = _checked(_json(report), report) if has_report else {}
    capsules = _descriptions([path, *members])
    is_over = has_report and "under_way" not in document
    runs = [Run(document, _ring(ring) if has_ring else (), capsules, path, killed=not is_over)]
    for member in members:
        inner = os.path.join(member, "report.json")
        # Its alarms are in the report of all.
        own = {} if has_report or not os.path.isfile(inner) else _checked(_json(inner), inner)
        is_over = has_report or bool(own) and "under_way" not in own
        runs.append(Run(own, _ring(os.path.join(member, "steps.ring")), directory=member, killed=not is_over))
    return runs


def holds_a_run(path: str) -> bool:
    """Is the directory that of a run, of its process, or of a capsule?"""
    names = ("report.json", "steps.ring", run_folder.STARTED, "capsule.json")
    return any(os.path.isfile(os.path.join(path, name)) for name in names) or bool(merge.member_folders(path))


def is_left_by_a_run(path: str) -> bool:
    """Is it what a run leaves, and not a program?"""
    if os.path.isdir(path):
        return not os.path.isfile(os.path.join(path, "__main__.py"))
    return path.endswith((".json", ".ring")) or pack.is_packed(path)


@contextlib.contextmanager
def unpacked(path: str) -> Iterator[str]:
    """The folder in place of a packed capsule, for as long; else the path itself."""
    try:
        with pack.unpacked(path) as folder:
            yield folder
    except pack.Refused as e:
        raise Unreadable(str(e)) from None


def read(path: str) -> list[Run]:
    """The runs found at a directory of a run, a capsule, a report or a ring."""
    if os.path.isdir(path):
        about = os.path.join(path, "capsule.json")
        return [_capsule(about)] if os.path.isfile(about) else _directory(path)
    if path.endswith(".ring"):
        return [Run({}, _ring(path), directory=os.path.dirname(path), killed=True)]
    if _json(path).get("kind") == CAPSULE:
        return [_capsule(path)]
    return [Run(_checked(_json(path), path), directory=os.path.dirname(path))]
