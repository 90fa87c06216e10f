"""What a rank asks of the store in a bad step does not depend on the number of ranks. Their time is simulated."""

import pytest
from bench.rank_scale import ranks

from finitude.rerun import rank_vote


@pytest.mark.parametrize("decide", [ranks.vote, ranks.second_run, ranks.exchange])
def test_store_operations_do_not_grow_with_ranks(decide):
    few, many = decide(2), decide(256)
    assert max(many.operations) <= 2 * max(few.operations) and max(many.sent) < 4096
    assert many.seconds < 1.0


def test_missing_rank_is_named_by_one_rank(monkeypatch):
    """The text that names it needs an operation for each rank."""
    monkeypatch.setattr(rank_vote, "LIMIT_S", 0.3)
    cost, said = ranks.vote_without_last(256)
    assert len(said) == 255 and len(set(said)) == 1 and "rank 255 did not come to this step" in said[0]
    *others, author = sorted(cost.operations)
    assert author >= 256 and max(others) < 100
