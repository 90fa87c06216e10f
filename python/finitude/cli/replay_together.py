"""`torchrun -m finitude replay RUN`: each process plays the capsule of its rank, and the collective operations of the
step are issued again between them, so that the step is computed again as a whole."""

from __future__ import annotations

import json
import os
import shlex
import sys
from datetime import timedelta

from ..capsules import step_manifest
from . import replay_ranks
from .replay_ranks import EXIT_CANNOT, EXIT_USAGE, OUTCOMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

WAIT_S = 60  # for another rank
MAX_WAIT_S = 86400
# The step is played once, on the CPU, in its own dtypes: the ranks have to come to the same operations.
NOT_TOGETHER = (*replay_ranks.OF_ONE, "--dtype", "--device", "--times", "--check", "--unfused", "--with", "--against")


class _Refused(Exception):
    """(what is reported, exit code), the same on all ranks."""


def is_asked() -> bool:
    """Was this process started by torchrun? Other launchers leave no variable that an ordinary shell may not have."""
    return "TORCHELASTIC_RUN_ID" in os.environ and all(name in os.environ for name in ("RANK", "WORLD_SIZE"))


def main(
    path: str | None,
    found: tuple[str, Mapping[str, Any]] | None,
    rest: Sequence[str],
    play: Callable[..., tuple[Any, ...]],
    quiet: bool,
    as_json: bool,
) -> int:
    """The exit code of this rank; rank 0 prints what all came to, and its code is that of the worst. found: what
    replay_ranks.manifest_of(path) gave; play: replay_command of the engine. rest: all words but --json and --quiet."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        words, wait_s = _without_wait(rest)
        where, document, capsules = _checked(path, found, words, size)
    except _Refused as e:
        text, code = e.args
        if rank != 0:
            return 0  # torchrun ends the other ranks where one has failed: that is the one which says why
        sys.stderr.write(f"finitude: {replay_ranks.printable(text)}\n")
        return code
    try:
        store, groups = _meet(document, rank, size, wait_s)
    except (RuntimeError, ValueError) as e:
        sys.stderr.write(f"finitude: rank {rank}: the ranks did not meet within {wait_s} s: {_first_line(e)}\n")
        return EXIT_CANNOT
    code, out, err, _ = play(replay_ranks.words_for(words, path or "", capsules[rank]), groups, wait_s)
    mine = {"rank": rank, "code": code, "text": out, "notes": err.splitlines()}
    store.set(f"said/{rank}", json.dumps(mine))
    if rank == 0:
        code = _show(where, store, size, wait_s, quiet, as_json)
        store.set("shown", "1")
    else:
        _wait(store, "shown", (2 * wait_s + 10) * size)  # torchrun ends all as soon as one has failed
    return code


def _without_wait(rest):
    """(the words of the replay, seconds of --timeout)"""
    words, wait_s, rest = [], WAIT_S, [*rest]
    while rest:
        name, eq, value = (word := rest.pop(0)).partition("=")
        if name != "--timeout":
            words.append(word)
            continue
        value = value if eq else rest.pop(0) if rest else ""
        if not value.isdecimal() or not 1 <= int(value) <= MAX_WAIT_S:
            raise _Refused(f"--timeout takes a number of seconds, not {value or 'nothing'}", EXIT_USAGE)
        wait_s = int(value)
    return words, wait_s


def _checked(path, found, words, size):
    """(where the manifest is, manifest, folders of the capsules by rank)"""
    if wrong := next((word for word in words if word.partition("=")[0] in NOT_TOGETHER), None):
        raise _Refused(f"{wrong} is not possible where all ranks replay together: leave it out", EXIT_USAGE)
    if found is None:
        what = f"{path} is of one process" if path else "which run?"
        raise _Refused(f"{what}: name the folder of a run of several ranks, or its step-NNNNNN.json", EXIT_USAGE)
    where, document = found
    ranks = len(document["ranks"])
    alone = shlex.join(["finitude", "replay", *([path] if path else [])])
    if ranks != size:
        again = f"torchrun --standalone --nproc-per-node {ranks} -m {alone}"
        raise _Refused(f"the step is of {ranks} ranks, and {size} replay it: {again}", EXIT_USAGE)
    capsules = step_manifest.capsules(where, document)
    for one in document["ranks"]:
        if one["rank"] not in capsules:
            why = one["why"] or "its folder is not there"
            raise _Refused(
                f"rank {one['rank']} has no capsule ({why}), so not all can replay together: "
                f"{alone} plays each by itself",
                EXIT_CANNOT,
            )
    return where, document, capsules


def _meet(document, rank, size, wait_s):
    """(store, by the name of a group of the step that of the group here). All ranks make all groups, in one order."""
    import torch.distributed as dist

    limit = timedelta(seconds=wait_s)
    store, _, _ = next(iter(dist.rendezvous("env://", rank, size, timeout=limit)))
    store.set_timeout(limit)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("finitude/groups", store), rank=rank, world_size=size, timeout=limit
    )
    groups = {}
    for one in document["groups"]:
        in_order: dict[str, Any] = {} if one["ranks"] == sorted(one["ranks"]) else {"sort_ranks": False}
        try:
            group = dist.new_group(one["ranks"], timeout=limit, backend="gloo", **in_order)
        except TypeError:
            continue  # this torch sorts ranks: operations of the group take their recorded results, on all ranks
        if rank in one["ranks"]:
            groups[one["name"]] = group.group_name
    return dist.PrefixStore("finitude/said", store), groups


def _wait(store, key, seconds):
    """Is it there?"""
    try:
        store.wait([key], timedelta(seconds=seconds))
    except (RuntimeError, ValueError):
        return False
    return True


def _show(where, store, size, wait_s, quiet, as_json):
    said, worst = [], 0
    end_s = 2 * wait_s + 10  # one that waits for another rank itself comes to an end first
    for rank in range(size):
        one: dict[str, Any] = {
            "rank": rank,
            "code": EXIT_CANNOT,
            "text": "",
            "notes": [f"it did not end within {end_s} s of rank 0"],
        }
        if _wait(store, f"said/{rank}", end_s):
            one = json.loads(store.get(f"said/{rank}"))
        code = one.pop("code")
        worst = max(worst, code)
        one["outcome"] = OUTCOMES[code] if code < len(OUTCOMES) else "cannot be replayed"
        said.append(one)
    replay_ranks.show(where, said, worst, quiet, as_json)
    return worst


def _first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
