"""`finitude doctor --ranks`, in each of the processes that a launcher starts: the devices compute and remember right,
the ranks come to the same sums, and their clocks agree.

    torchrun --nproc-per-node 8 -m finitude doctor --ranks

Rank 0 prints what all have found. A rank that does not answer is named: each wait has a limit, --seconds."""

from __future__ import annotations

import datetime
import json
import os
import socket
import statistics
import sys
import time

import torch

from . import device_health

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .options import Options

OK, BAD, CANNOT = 0, 1, 4
SIZES = (1, 1 << 14, 1 << 22)  # elements of 4 bytes
REPEATS = 5
MOST_SKEW_S = 1.0  # of clocks: what schedulers, certificates and logs forgive
SLOW = 3.0  # times the median of all ranks
MEMORY_MB = 64
_POLL_S = 0.01
_KEY = "finitude/doctor"


class Absent(Exception):
    """Why the ranks have not met."""


def main(options: Options) -> int:
    """Returns the exit code: on each rank that of all."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ):
        sys.stderr.write(
            "finitude doctor: --ranks needs a launcher: torchrun --nproc-per-node 2 -m finitude doctor --ranks\n"
        )
        return CANNOT
    try:
        return _examine(options)
    except Absent as e:
        sys.stderr.write(f"finitude doctor: the ranks did not meet: {e}\n")
        return CANNOT


def _examine(options):
    import torch.distributed as distributed

    device, seconds = _device(), options.seconds
    try:
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", timeout=datetime.timedelta(seconds=seconds)
        )
    except (RuntimeError, ValueError, OSError) as e:
        raise Absent(str(e).splitlines()[0] if str(e) else type(e).__name__) from e
    rank, size = distributed.get_rank(), distributed.get_world_size()
    store = distributed.distributed_c10d._get_default_store()
    mine = _own(device)
    mine["clock"] = _clock(store, rank, size, seconds)
    try:
        mine["reduced"], bad = _sums(distributed, device, rank, size)
    except RuntimeError as e:  # of a collective operation
        mine["reduced"], bad = [], [f"an all-reduce failed: {str(e).splitlines()[0]}"]
    mine["bad"] += bad
    store.set(f"{_KEY}/of/{rank}", json.dumps(mine))
    if rank:
        is_known = _until(store, [f"{_KEY}/code"], 2 * seconds)
        code = int(store.get(f"{_KEY}/code")) if is_known else CANNOT
        store.set(f"{_KEY}/left/{rank}", "")
    else:
        code = _conclude(options, store, size)
    distributed.destroy_process_group()
    return code


def _conclude(options, store, size):
    """What rank 0 says, and waits until the others have heard: it may be what keeps the store."""
    seconds = options.seconds
    found = _collect(store, size, seconds)
    document = judged(found, size, seconds)
    if options.json:
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
    elif not options.quiet:
        sys.stdout.write(text_of(document))
    sys.stdout.flush()
    code = BAD if any(f["verdict"] == "bad" for f in document["findings"]) else OK
    store.set(f"{_KEY}/code", str(code))
    _until(store, [f"{_KEY}/left/{r}" for r in range(1, size) if r in found], seconds)
    return code


def _device():
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available() and index < torch.cuda.device_count():
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return torch.device("cpu")


def _own(device):
    """What this rank finds by itself."""
    xids = device_health.Xids(device.index) if device.type == "cuda" else None
    computed, bad = device_health.compute(device)
    remembered, more = device_health.memory(device, MEMORY_MB)
    bad += more
    driver: dict[str, Any] = {}
    if xids is not None:
        driver, more = device_health.driver(device.index)
        bad += more + xids.close()
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": str(device),
        "compute": computed,
        "memory": remembered,
        "driver": driver,
        "bad": bad,
    }


def _until(store, keys, seconds):
    """Are they all there, within that time?"""
    limit = time.monotonic() + seconds
    while keys and not store.check(keys):
        if time.monotonic() >= limit:
            return False
        time.sleep(_POLL_S)
    return True


def _clock(store, rank, size, seconds):
    """By how many seconds the clock of this rank is ahead of that of rank 0, and how far that may be wrong. Rank 0
    answers each rank in turn; of three questions the quickest counts."""
    best = (0.0, 0.0)
    for turn in range(1, size):
        for number in range(3):
            asked, answered = f"{_KEY}/asks/{turn}/{number}", f"{_KEY}/time/{turn}/{number}"
            if rank == turn:
                before = time.time()
                store.set(asked, "")
                if not _wait_quickly(store, answered, seconds):
                    return None
                after = time.time()
                half = (after - before) / 2
                if number == 0 or half < best[1]:
                    best = ((before + after) / 2 - float(store.get(answered)), half)
            elif rank == 0:
                if not _wait_quickly(store, asked, seconds):
                    break  # that rank is gone; the others still get their answers
                store.set(answered, repr(time.time()))
    return {"ahead_s": round(best[0], 6), "within_s": round(best[1], 6)}


def _wait_quickly(store, key, seconds):
    limit = time.monotonic() + seconds
    while not store.check([key]):
        if time.monotonic() >= limit:
            return False
    return True


def _sums(distributed, device, rank, size):
    """All-reduces of known values: seconds of each size, and what is bad."""
    timed, bad = [], []
    expected = size * (size + 1) // 2
    for elements in SIZES:
        seconds = []
        for _ in range(REPEATS):
            values = torch.full((elements,), rank + 1, dtype=torch.float32, device=device)
            began = time.perf_counter()
            distributed.all_reduce(values)
            wrong = int((values != expected).sum())  # waits for the device
            seconds.append(time.perf_counter() - began)
            if wrong:
                bad.append(f"{wrong} of {elements} sums of an all-reduce are not {expected}")
                break
        timed.append({"bytes": 4 * elements, "seconds": round(statistics.median(seconds), 6)})
    return timed, bad


def _collect(store, size, seconds):
    """{rank: what it found} of those that have answered."""
    found = {}
    limit = time.monotonic() + seconds
    for rank in range(size):
        if _until(store, [f"{_KEY}/of/{rank}"], max(0.0, limit - time.monotonic())):
            found[rank] = json.loads(store.get(f"{_KEY}/of/{rank}"))
    return found


def judged(found: dict[int, dict[str, Any]], size: int, seconds: float) -> dict[str, Any]:
    """The document of --json. found: of the ranks that have answered within that time."""
    findings = []

    def add(rank, verdict, text):
        findings.append({"rank": rank, "verdict": verdict, "text": text})

    for rank in range(size):
        if rank not in found:
            add(rank, "bad", f"did not answer within {seconds:g} s")
            continue
        for text in found[rank]["bad"]:
            add(rank, "bad", text)
        clock = found[rank]["clock"]
        if clock is not None and abs(clock["ahead_s"]) - clock["within_s"] > MOST_SKEW_S:
            side = "ahead of" if clock["ahead_s"] > 0 else "behind"
            add(rank, "bad", f"its clock is {abs(clock['ahead_s']):.1f} s {side} that of rank 0")
    if len(found) > 2:
        for what, of in (("its memory", _memory_s), ("its products of matrices", _product_s)):
            usual = statistics.median(of(one) for one in found.values())
            for rank, one in found.items():
                if of(one) > SLOW * usual > 0:
                    add(rank, "warn", f"{what} took {of(one) / usual:.1f} times as long as on most ranks")
    return {"schema": 1, "ranks": size, "of": {str(rank): one for rank, one in found.items()}, "findings": findings}


def _memory_s(one):
    return one["memory"]["seconds"]


def _product_s(one):
    return 1.0 / max(one["compute"]["float64_gflops"], 1e-9)


def text_of(document: dict[str, Any]) -> str:
    """For a person."""
    lines = [f"{f['verdict']:<5} rank {f['rank']}: {f['text']}" for f in document["findings"]]
    for rank, one in document["of"].items():
        sums = ", ".join(f"{r['bytes']} B {1e3 * r['seconds']:.2f} ms" for r in one["reduced"])
        clock = one["clock"]
        ahead = f"{1e3 * clock['ahead_s']:+.1f} ms" if clock else "not known"
        lines.append(f"rank {rank}: {one['device']} of {one['host']}; clock {ahead}; all-reduce {sums or 'failed'}")
    answered, bad = len(document["of"]), sum(f["verdict"] == "bad" for f in document["findings"])
    lines.append(f"{answered} of {document['ranks']} ranks answered: {bad or 'nothing'} bad")
    return "".join("".join(c if c.isprintable() else " " for c in line) + "\n" for line in lines)
