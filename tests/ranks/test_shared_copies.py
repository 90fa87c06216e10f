"""What ranks find out together about a copy, and which rows all of them skip."""

import itertools
import json
import types

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, SubsetRandomSampler, TensorDataset

from finitude.program import ranks
from finitude.session import rollback_ranks, rollback_rows


@pytest.fixture
def both(monkeypatch):
    """The same copies as two ranks see them."""
    store = dist.HashStore()
    monkeypatch.setattr(rollback_ranks.compat, "group_store", lambda: store)
    found = []
    for rank in (0, 1):
        monkeypatch.setattr(rollback_ranks, "_sessions", itertools.count())
        monkeypatch.setattr(rollback_ranks.ranks, "world", lambda rank=rank: (rank, 2))
        found.append(rollback_ranks.SharedCopies())
    return found


def test_copy_is_good_where_all_ranks_say_so(both):
    for number in range(1, 8):
        for one in both:
            one.note_good(number)
        assert [one.is_good(number) for one in both] == [True, True]


@pytest.mark.parametrize("late", [0, 1])
def test_first_rank_that_asks_decides(both, late):
    both[1 - late].note_good(7)
    assert not both[1 - late].is_good(7)
    both[late].note_good(7)
    assert not both[late].is_good(7)


def test_one_ranks_end_reaches_the_others(both):
    assert both[0].ended() == ""
    both[1].end("two copies take 9 MB\x1b")
    both[0].end("later")
    assert [one.ended() for one in both] == ["rank 1: two copies take 9 MB?"] * 2


def test_without_a_store_nothing_is_shared(both, monkeypatch):
    def gone(*_):
        raise RuntimeError("Connection reset by peer\nmore")

    both[0]._common = types.SimpleNamespace(add=gone, check=gone, compare_set=gone)
    for ask in (lambda: both[0].note_good(1), lambda: both[0].is_good(1), both[0].ended):
        with pytest.raises(rollback_ranks.NotShared, match=r"Connection reset by peer\)$"):
            ask()
    both[0].end("it says nothing")
    monkeypatch.setattr(rollback_ranks.compat, "group_store", lambda: None)
    with pytest.raises(rollback_ranks.NotShared, match="no process group"):
        rollback_ranks.SharedCopies()


def test_ranks_of_one_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(ranks, "world", lambda: (0, 16))
    for given, expected in (("8", 8), ("0", 1), ("64", 16), ("x", 16)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", given)
        assert ranks.on_this_machine() == expected


def loaders(monkeypatch, make_sampler):
    """(what skips rows, the loader) of two ranks; only rank 1 had a bad value, in rows 4 and 5."""
    data = TensorDataset(torch.arange(12))
    found = []
    for rank in (0, 1):
        loader = DataLoader(data, batch_size=2, sampler=make_sampler(data, rank))
        monkeypatch.setattr(rollback_rows, "_loaders", lambda loader=loader: [loader])
        monkeypatch.setattr(rollback_rows, "_drawn", lambda rank=rank: [(data, {4, 5} if rank else {0, 1})])
        skips = rollback_rows.SkipsBadRows()
        cause = {"class": "unknown" if rank else "other-rank"}
        found.append((skips, loader, skips.of_this_rank({"cause": cause, "births": []})))
    return found


def skip_on_all(monkeypatch, found, reports=None):
    said = []
    for skips, loader, _ in found:
        monkeypatch.setattr(rollback_rows, "_loaders", lambda loader=loader: [loader])
        said.append(skips.skip_same(reports or [report for _, _, report in found]))
    assert said[0] == said[1]
    return said[0]


def test_all_ranks_skip_the_rows_of_one(monkeypatch):
    found = loaders(monkeypatch, lambda data, rank: DistributedSampler(data, 2, rank, shuffle=False))
    assert skip_on_all(monkeypatch, found) == "rows 4, 5 of TensorDataset are not drawn again"
    drawn = [[row for (rows,) in loader for row in rows.tolist()] for _, loader, _ in found]
    assert len(drawn[0]) == len(drawn[1]) == 5 and sorted(drawn[0] + drawn[1]) == [0, 1, 2, 3, *range(6, 12)]


def test_no_rows_are_skipped_where_ranks_would_differ(monkeypatch):
    found = loaders(monkeypatch, lambda data, rank: SubsetRandomSampler(range(rank, 12, 2)))
    assert skip_on_all(monkeypatch, found).startswith("no row of TensorDataset is skipped: ranks could be given")
    assert [len(loader) for _, loader, _ in found] == [3, 3]
    other = json.dumps({"rows": {}, "even": ["TensorDataset 13"]})  # a shard of another length
    found = loaders(monkeypatch, lambda data, rank: DistributedSampler(data, 2, rank))
    assert "ranks could be given" in skip_on_all(monkeypatch, found, [found[1][2], other])
