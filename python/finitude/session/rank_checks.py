"""What ranks should have in common: how they were started, and the bits of replicated parameters.

Each rank writes what it knows into the store through which the process group met, and reads what another one wrote only
where it is there. Nothing waits for another rank, and no collective operation is made."""

from __future__ import annotations

import array
import hashlib
import json
import os
import platform
import time
from typing import NamedTuple

import torch

from .. import _native
from ..base import compat
from ..base.unseen import unseen
from ..program import ranks, replicas
from ..report import run_facts
from . import native_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..base.types import Config, Optimizer
    from ..report.document import Report

KIND_OF_START, KIND_OF_REPLICAS = "ranks-differ", "replicas-differ"
MOST_NAMED = 8
MOST_SKEW_S = 1.0  # between the clocks of two ranks
LOST = (RuntimeError, ValueError, OSError)  # the store, or whoever kept it
COMPARED = ("OMP_", "MKL_", "NCCL_", "GLOO_", "PYTORCH_", "TORCH_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_")


def before_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """torch calls it before each step of any optimizer, where replicas are compared."""
    session = native_callbacks.session
    if session is not None and os.getpid() == session.pid and not native_callbacks.runs_again():
        session.part(session.rank_checks.look, optimizer)


def start_facts(has_environment: bool) -> dict[str, Any]:
    """What has to be the same on all ranks, flat."""
    backends = torch.backends
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "finitude": _native.version,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "default dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "cudnn.benchmark": backends.cudnn.benchmark,
        "cudnn.deterministic": backends.cudnn.deterministic,
    }
    if has_environment:
        wanted = [name for name in os.environ if name.startswith(COMPARED)]
        facts.update(run_facts.environment({name: os.environ[name] for name in wanted}, wanted))
    return facts


def difference(first: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """Of the facts of two ranks: what each has in place of what."""
    names = [*mine, *(name for name in first if name not in mine)]
    return [
        f"{name} {mine.get(name, 'not set')} against {first.get(name, 'not set')}"
        for name in names
        if mine.get(name) != first.get(name)
    ]


class _Round(NamedTuple):
    key: str
    pair: tuple[int, int]  # ordinal of the optimizer, rank of the leader
    step: int
    names: Sequence[str]
    digests: array.array[int]


class RankChecks:
    def __init__(self, config: Config, report: Report, explains: bool):
        """explains: this process explains a step of another one, and compares nothing."""
        self._report, self._redact = report, config.redact
        self._every = 0 if explains else config.replicas_every
        self._own_start: dict[str, Any] | None = None
        self._is_done = explains  # with the facts of the start
        self._has_compared_clocks = explains
        # Until the leader's digests are in the store; of a pair the newest.
        self._waiting: dict[tuple[int, int], _Round] = {}
        self._store_names: dict[tuple[int, int], str] = {}  # pair -> part of its keys
        self._sent_keys: dict[int, list[str]] = {}  # ordinal of an optimizer -> keys that this rank wrote
        self._same_at: dict[tuple[int, int], int] = {}  # pair -> last step with the same bits
        self._reported: set[tuple[int, int]] = set()  # pairs whose replicas differ
        self.is_on = self._every > 0

    # -- how the ranks were started ------------------------------------------------------------

    def write_facts(self) -> None:
        """An optimizer was made. Once there is a process group."""
        if self._is_done or self._own_start is not None or (store := _store()) is None:
            return
        self._own_start = start_facts(not self._redact)
        rank = ranks.world()[0]
        _in_store(lambda: store.set(f"finitude/clock/{'first' if rank == 0 else 'others'}", f"{rank} {time.time()!r}"))
        if rank == 0:
            self._is_done = True
            _in_store(lambda: store.set("finitude/start", json.dumps(self._own_start)))

    def compare_facts(self) -> None:
        """With those of rank 0, if it has written them."""
        self.write_facts()
        self._compare_clocks()
        if self._is_done or self._own_start is None or (store := _store()) is None:
            return
        found = _in_store(lambda: store.get("finitude/start") if store.check(["finitude/start"]) else None)
        if found is None:
            return
        self._is_done = True
        if others := difference(json.loads(found), json.loads(json.dumps(self._own_start))):
            rank = ranks.world()[0]
            more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
            text = f"rank {rank} was not started as rank 0: {', '.join(others[:MOST_NAMED])}{more}"
            self._report.advise(KIND_OF_START, None, text)

    def _compare_clocks(self):
        """What another rank wrote before lies in the past: else its clock is ahead of this one's. Rank 0 looks at who
        wrote last, the others at rank 0. By how much is a lower bound: it is not known how long ago that was."""
        if self._has_compared_clocks or self._own_start is None or (store := _store()) is None:
            return
        key = f"finitude/clock/{'others' if ranks.world()[0] == 0 else 'first'}"
        found = _in_store(lambda: store.get(key).decode() if store.check([key]) else None)
        if found is None:
            return
        self._has_compared_clocks = True
        other, written = found.split(" ")
        if (ahead := float(written) - time.time()) > MOST_SKEW_S:
            text = f"the clock of rank {other} is at least {ahead:.1f} s ahead of that of rank {ranks.world()[0]}"
            self._report.advise(KIND_OF_START, None, text)

    # -- the bits of replicas ------------------------------------------------------------------

    def look(self, optimizer: Optimizer) -> None:
        """A step comes, which the gate has counted by now."""
        if not ranks.several() or not _native.is_registered(optimizer):
            return
        window = _native.window(optimizer)
        step = window["step"] - 1
        if step < 0 or step % self._every:
            return
        self._compare_waiting()
        if (store := _store()) is not None:
            self._digest(optimizer, window["ordinal"], step, store)
        self._compare_waiting()

    @unseen
    def _digest(self, optimizer, ordinal, step, store):
        rank = ranks.world()[0]
        for leader, members in replicas.of_optimizer(optimizer).items():
            here = [(name, t) for name, t in members if t.device.type == "cpu"]
            if len(here) < len(members):
                self._report.add_not_watched("replicas on a device (--replicas-every)")
            pair = ordinal, leader
            if not here or pair in self._reported:
                continue
            names = [name for name, _ in here]
            digests = array.array("Q", (_native.checksum(t) for _, t in here))
            key = f"finitude/replicas/{self._name_of(ordinal, leader, names)}/{step}"
            if leader != rank:
                self._waiting[pair] = _Round(key, pair, step, names, digests)
                continue
            written = self._sent_keys.setdefault(ordinal, [])
            _in_store(lambda key=key, digests=digests: store.set(key, digests.tobytes().hex()))
            written.append(key)
            if len(written) > 2:  # all have read it: they took part in the exchanges of a later step
                _in_store(lambda old=written.pop(0): store.delete_key(old))

    def _name_of(self, ordinal, leader, names):
        """What the replicas of an optimizer are called in the store. Not by its ordinal: a rank that has one optimizer
        more than the others numbers them otherwise. Of those with the same names, the order of their first steps."""
        known = self._store_names.get((ordinal, leader))
        if known is None:
            whose = hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
            number = sum(name.startswith(f"{whose}/{leader}/") for name in self._store_names.values())
            known = self._store_names[ordinal, leader] = f"{whose}/{leader}/{number}"
        return known

    def _compare_waiting(self):
        if not self._waiting or (store := _store()) is None:
            return
        for pair, one in list(self._waiting.items()):
            found = _in_store(lambda key=one.key: store.get(key) if store.check([key]) else None)
            if found is not None:
                del self._waiting[pair]
                self._judge_round(one, array.array("Q", bytes.fromhex(found.decode())))

    def _judge_round(self, one, first):
        leader = one.pair[1]
        if len(first) != len(one.digests):
            self._reported.add(one.pair)
            text = f"rank {ranks.world()[0]} has {len(one.digests)} replicated parameters, rank {leader} {len(first)}"
            self._report.advise(KIND_OF_REPLICAS, one.step, text)
            return
        other = [name for name, mine, its in zip(one.names, one.digests, first) if mine != its]
        if not other:
            self._same_at[one.pair] = one.step
            return
        self._reported.add(one.pair)
        before = self._same_at.get(one.pair)
        since = f"; at step {before} all had the same" if before is not None else ""
        more = f" and {len(other) - MOST_NAMED} more" if len(other) > MOST_NAMED else ""
        text = (
            f"as step {one.step} begins, {len(other)} of {len(one.names)} replicated parameters of rank "
            f"{ranks.world()[0]} have other bits than on rank {leader}: "
            f"{', '.join(other[:MOST_NAMED])}{more}{since}"
        )
        self._report.advise(KIND_OF_REPLICAS, one.step, text)

    def at_end(self) -> None:
        """What is in the store by now; nothing is waited for."""
        self.compare_facts()
        self._compare_waiting()


def _store():
    return compat.group_store() if ranks.several() else None


def _in_store(call):
    """None where the store is gone."""
    try:
        return call()
    except LOST:
        return None
