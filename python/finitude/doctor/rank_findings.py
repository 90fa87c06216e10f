"""`torchrun ... -m finitude doctor train.py`: each rank examines its own first steps, and the first rank of a machine
prints what all of them there found. They meet in a folder for temporary files; what is read there is JSON of the same
user."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time

from ..base.plain_json import read, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES, MOST_RANKS = 64 << 20, 1024
FOR_OTHERS = 30.0  # seconds that ranks wait for one another, beyond the time for the steps
JOB = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK")


def _number(name):
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 7 else -1


class Meeting:
    """The ranks that one launcher started on this machine."""

    def __init__(self, rank: int, local_rank: int, local_ranks: int):
        self.rank, self.prints, self._expected = rank, local_rank == 0, local_ranks
        job = "\n".join([str(os.getppid()), *(os.environ.get(name, "") for name in JOB)])
        name = f"finitude-doctor-{os.getuid()}-{hashlib.blake2b(job.encode(), digest_size=8).hexdigest()}"
        self._folder = os.path.join(tempfile.gettempdir(), name)

    def _is_ours(self):
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            found = os.lstat(self._folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()

    def bring(self, document: dict[str, Any], seconds: float) -> dict[int, dict[str, Any]] | None:
        """The documents of all ranks that came in time, for the one that prints and then calls `end`; None for the
        others, which wait for that: a launcher ends all its processes when one has ended with an error."""
        own = {self.rank: document}
        if not self._is_ours():
            return own
        path = os.path.join(self._folder, f"rank-{self.rank}.json")
        try:
            with open(path + ".new", "w", encoding="utf-8") as f:
                json.dump(safe(document), f)
            os.replace(path + ".new", path)
        except OSError:
            return own
        until = time.monotonic() + seconds + FOR_OTHERS
        while time.monotonic() < until:
            if not self.prints and not os.path.exists(path):
                return None
            if self.prints and len(self._brought()) >= self._expected:
                break
            time.sleep(0.05)
        return own | self._documents() if self.prints else None

    def _brought(self):
        try:
            names = os.listdir(self._folder)[: 4 * MOST_RANKS]
        except OSError:
            return {}
        ranks = {name: name[len("rank-") : -len(".json")] for name in names if name.endswith(".json")}
        return {int(rank): os.path.join(self._folder, name) for name, rank in ranks.items() if rank.isdecimal()}

    def _documents(self):
        found = {}
        for rank, path in self._brought().items():
            try:
                found[rank] = read(path, MOST_BYTES)
            except (OSError, ValueError):
                continue
        return {rank: one for rank, one in found.items() if isinstance(one, dict)}

    def end(self) -> None:
        """All is printed. Removes what the ranks brought, which is the sign for them."""
        for path in self._brought().values():
            try:
                os.unlink(path)
            except OSError:
                pass
        try:
            os.rmdir(self._folder)
        except OSError:
            pass


def meeting() -> Meeting | None:
    """None where no launcher has started several ranks here."""
    rank, local_rank, local_ranks = map(_number, ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    return Meeting(rank, local_rank, local_ranks) if min(rank, local_rank) >= 0 and local_ranks > 1 else None


def _key(finding):
    return tuple(str(finding.get(key, "")) for key in ("check", "seen_in", "verdict", "file", "line"))


def merged(documents: dict[int, dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """(findings, ranks). What several ranks found is there once, as the first of them has it; `ranks` says who found
    it."""
    found: dict[Any, dict[str, Any]] = {}
    for rank in sorted(documents):
        findings = documents[rank].get("findings")
        for one in findings if isinstance(findings, list) else ():
            if isinstance(one, dict):
                found.setdefault(_key(one), {**one, "ranks": []})["ranks"].append(rank)
    for one in found.values():
        one["ranks"] = sorted(set(one["ranks"]))
    return list(found.values()), sorted(documents)
