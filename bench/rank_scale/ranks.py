"""Ranks as threads of one process, each with the real code of a decision: rerun/rank_vote.py, program/side_group.py.

Their time is simulated (simulation.py): one thread runs at a time, and an operation of the store takes SERVED_S of the
one thread that serves it."""

import contextlib
import threading
from typing import NamedTuple

import torch
import torch.distributed as dist

from finitude.base import compat
from finitude.program import gathering, ranks, side_group
from finitude.rerun import rank_vote

from .simulation import Simulation

SERVED_S = 50e-6  # one operation of a TCPStore
APART_S = 0.1  # ranks come to a decision within so long of one another


class Cost(NamedTuple):
    seconds: float  # simulated, from the last rank's coming until the last one has heard
    operations: list[int]  # of the store, of each rank
    sent: list[int]  # bytes of keys and values, and of what went into collective operations


class _Store:
    """What a rank asks of the store of all of them, counted."""

    def __init__(self, store, simulation):
        self._store, self._simulation, self.operations, self.sent = store, simulation, 0, 0

    def _ask(self, name, *args):
        self.operations += 1
        texts = [t for a in args for t in (a if isinstance(a, list) else [a])]
        self.sent += sum(len(str(t)) for t in texts)
        self._simulation.serve(SERVED_S)
        return getattr(self._store, name)(*args)

    def __getattr__(self, name):
        return lambda *args: self._ask(name, *args)


_this = threading.local()  # which rank a thread is


class _Gloo:
    """The group of a side group: ranks of this process, which take the largest of what all of them bring. Its own time
    is not simulated: gloo's is."""

    largest = None

    def __init__(self, store, rank, size, timeout):
        self._size = size

    def allreduce(self, tensors, operation):
        _this.store.sent += sum(t.numel() * t.element_size() for t in tensors)
        return _Work(_Gloo.largest, tensors[0])


class _Work:
    def __init__(self, largest, tensor):
        self._largest, self._tensor = largest, tensor
        largest.bring(tensor)

    def wait(self):
        self._tensor.copy_(self._largest.get())


class _Largest:
    def __init__(self, size):
        self._missing, self._most, self._simulation = size, None, None

    def bring(self, tensor):
        self._missing -= 1
        self._most = tensor.clone() if self._most is None else torch.maximum(self._most, tensor)

    def get(self):
        while self._missing:
            _this.simulation.sleep(1e-3)
        return self._most


@contextlib.contextmanager
def _as_ranks(size, simulation):
    """world() and group_store() are those of the thread that asks, and all time is simulated."""
    changed = [
        (ranks, "world", lambda: (_this.rank, size)),
        (compat, "group_store", lambda: _this.store),
        (rank_vote, "_left", ""),
        (dist, "ProcessGroupGloo", _Gloo),
        (dist, "PrefixStore", lambda name, store: store),
        *((module, "time", simulation) for module in (gathering, rank_vote, side_group)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _run(size, one):
    """one() as each rank. Returns the Cost and what each rank heard."""
    simulation, shared, stores, said, ended = Simulation(), dist.HashStore(), [], {}, []

    def body(rank):
        _this.rank, _this.store, _this.simulation = rank, _Store(shared, simulation), simulation
        stores.append(_this.store)
        simulation.sleep(APART_S * (rank * 7 % size) / size)
        said[rank] = one()
        ended.append(simulation.monotonic())

    with _as_ranks(size, simulation):
        simulation.run(body, size)
    last = APART_S * (size - 1) / size
    return Cost(max(ended) - last, [s.operations for s in stores], [s.sent for s in stores]), list(said.values())


def vote(size):
    """All ranks can run a step again, and do."""
    cost, said = _run(size, lambda: rank_vote.Vote(_this.store, "finitude/0/117").cast("", "rewind"))
    assert said == [""] * size, said
    return cost


def vote_without_last(size):
    """The last rank does not come. Also returns what each of the others heard."""

    def cast():
        return rank_vote.Vote(_this.store, "finitude/0/117").cast("", "rewind") if _this.rank < size - 1 else None

    cost, said = _run(size, cast)
    return cost, [text for text in said if text is not None]


def second_run(size):
    """All ranks have ended the second run, and hear that all have. Without the thread that looks for progress."""

    def come_back():
        one = rank_vote.Vote(_this.store, "finitude/0/117")
        one._watch, one._ended = threading.current_thread(), threading.Event()
        return one.come_back("")

    cost, said = _run(size, come_back)
    assert said == [""] * size, said
    return cost


def exchange(size):
    """The side group is made, and ranks exchange about one step that is bad on one of them."""
    bad = size // 2
    _Gloo.largest = _Largest(size)

    def most():
        return side_group.SideGroup(range(size)).most((2 << 32 | bad) if _this.rank == bad else 0, 117)

    cost, said = _run(size, most)
    assert said == [2 << 32 | bad] * size, said
    return cost
