"""Ranks agree on a second run in place: all of them or none, whoever comes late, and never after one has given up."""

import threading
import time

import pytest
import torch.distributed as dist

from finitude.rerun import rank_vote


@pytest.fixture
def votes(monkeypatch):
    """A function that makes the votes of all ranks on one question."""
    monkeypatch.setattr(rank_vote, "_left", "")
    monkeypatch.setattr(rank_vote, "LIMIT_S", 0.3)
    store = dist.HashStore()

    def make(size, key="step"):
        found = []
        for rank in range(size):
            monkeypatch.setattr(rank_vote.ranks, "world", lambda rank=rank: (rank, size))
            found.append(rank_vote.Vote(dist.PrefixStore("group", store), key))
        return found

    return make


def cast(votes, words, delays=()):
    """What each rank hears; a rank without words does not come."""
    decided = {}

    def one(rank, why, way):
        time.sleep(delays[rank] if delays else 0)
        decided[rank] = votes[rank].cast(why, way)

    threads = [threading.Thread(target=one, args=(rank, *said)) for rank, said in enumerate(words) if said is not None]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return decided


def test_all_can(votes):
    three = votes(3)
    assert cast(three, [("", "rewind")] * 3) == {0: "", 1: "", 2: ""}
    assert all(v.goes for v in three)


def test_one_ranks_refusal_reaches_all_at_once(votes):
    three = votes(3)
    began = time.monotonic()
    decided = cast(three, [("", "rewind"), ("rewind: a file is gone", ""), ("", "rewind")])
    assert decided == dict.fromkeys(range(3), "rank 1: rewind: a file is gone") and time.monotonic() - began < 0.25
    assert not any(v.goes for v in three)


def test_votes_for_different_places_prevent_the_rerun(votes):
    decided = cast(votes(2), [("", "rewind"), ("", "jump Adam")])
    assert decided[0] == decided[1] and "would go back to elsewhere" in decided[0]


def test_missing_rank_is_waited_for_once(votes):
    decided = cast(votes(3), [("", "rewind"), None, ("", "rewind")])
    assert decided[0] == decided[2] and "rank 1 did not come to this step" in decided[0]
    began = time.monotonic()
    again = cast(votes(3, "a later step"), [("", "rewind"), None, ("", "rewind")])
    assert "an earlier step did not come to all ranks" in again[0] and time.monotonic() - began < 0.25


def test_rank_past_the_step_is_not_waited_for(votes):
    """It has taken the step without seeing anything; nothing is given up for that."""
    two = votes(2)
    two[0].gone_by = lambda: 1
    began = time.monotonic()
    assert cast(two, [("", ""), None])[0] == "rank 1 has taken this step" and time.monotonic() - began < 0.25
    assert not two[0].goes and not rank_vote._left


def test_late_rank_learns_that_others_have_continued(votes):
    """It finds the votes of all, and still must not go back alone."""
    decided = cast(votes(2), [("", "rewind"), ("", "rewind")], delays=(0, 0.6))
    assert decided[0] == decided[1] and "rank 1 did not come" in decided[1]


def test_all_ranks_agree_despite_race_at_the_limit(votes):
    for n in range(8):
        rank_vote._left = ""
        decided = cast(votes(2, f"step {n}"), [("", "rewind"), ("", "rewind")], delays=(0, 0.28 + 0.005 * n))
        assert decided[0] == decided[1], decided


def test_rank_that_comes_as_the_late_are_named_counts(votes, monkeypatch):
    two = votes(2)
    named = rank_vote.Vote._who_is_late

    def after_the_last(self):
        two[1]._votes.arrive()
        return named(self)

    monkeypatch.setattr(rank_vote.Vote, "_who_is_late", after_the_last)
    assert cast(two, [("", "rewind"), None]) == {0: ""} and two[0].goes and not rank_vote._left


def test_a_store_that_is_gone_is_a_no(votes):
    class Gone:
        def __getattr__(self, name):
            raise RuntimeError("Connection reset by peer")

    (vote,) = votes(1)
    vote.store = Gone()
    assert "could not agree (Connection reset by peer)" in vote.cast("", "rewind") and not vote.goes


@pytest.fixture
def stands(monkeypatch):
    """Second runs that never get any further; a list of those that were let out of an operation."""
    let_out = []
    monkeypatch.setattr(rank_vote, "STRAY_S", 0.5)
    monkeypatch.setattr(rank_vote, "_WATCH_S", 0.05)
    monkeypatch.setattr(rank_vote, "PARTING_S", 5.0)
    monkeypatch.setattr(rank_vote._native, "trace_length", lambda: 7)
    monkeypatch.setattr(rank_vote.compat, "abort_groups", lambda: let_out.append(1))
    return let_out


def back(votes, whys):
    """What each rank hears that has come back; one without words never does, but for being let out."""
    decided = {}
    for vote in votes:
        vote.watch()

    def one(rank, why):
        decided[rank] = votes[rank].come_back(why)

    threads = [threading.Thread(target=one, args=(rank, why)) for rank, why in enumerate(whys) if why is not None]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return decided


def test_all_ranks_return_and_continue(votes, stands):
    assert back(votes(3), ["", "other bits", ""]) == {0: "", 1: "", 2: ""} and not stands


def test_diverging_rank_ends_the_rerun_for_waiting_ones(votes, stands):
    three = votes(3)
    decided = back(three, [None, "no backward", None])
    assert decided[1] == three[1].parted and "rank 1 has ended it (no backward)" in decided[1]
    assert "rank 0 stopped after 7 operations" in decided[1]
    for waiting in (three[0], three[2]):
        limit = time.monotonic() + 5
        while not waiting.parted and time.monotonic() < limit:
            time.sleep(0.01)
        assert waiting.parted == decided[1]
        waiting.leave("an operation failed")  # what it waited in raised
    assert len(stands) == 2


def test_stalled_ranks_are_all_released(votes, stands, monkeypatch):
    monkeypatch.setattr(rank_vote, "STALL_S", 0.3)
    two = votes(2)
    for vote in two:
        vote.watch()
    limit = time.monotonic() + 5
    while not all(vote.parted for vote in two) and time.monotonic() < limit:
        time.sleep(0.01)
    for vote in two:
        assert (
            vote.parted
            == "the second run came to a halt: rank 0 stopped after 7 operations, rank 1 stopped after 7 operations"
        )
        vote.leave("let out")


def test_parting_waits_for_ranks_that_have_not_reported(votes, monkeypatch):
    monkeypatch.setattr(rank_vote, "PARTING_S", 5.0)
    two = votes(2)
    cast(two, [("", "rewind")] * 2)
    threading.Timer(0.2, two[1].part).start()
    began = time.monotonic()
    rank_vote.part(two[0])
    assert 0.1 < time.monotonic() - began < 4
    rank_vote.part(None)
