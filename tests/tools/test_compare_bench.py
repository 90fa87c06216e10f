"""bench/compare: four pairs with one change and four of rounding; the whole is docs/compare.md."""

import pytest

pytest.importorskip("bench.compare", reason="the benchmarks are not in an installed copy")
from bench.compare import (
    __main__ as compare,  # noqa: E402
    pairs,  # noqa: E402
)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["eps", "weight, renamed", "missing", "data row"])
def test_one_change_is_named(change):
    pair = next(pair for pair in pairs.changed(1) if pair.change == change)
    document = compare.judged(pair)
    assert pair.is_right(document), (compare.found_of(document), pair)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["halves", "autocast", "whole in float64", "foreach"])
def test_rounding_is_no_divergence(change):
    pair = next(pair for pair in pairs.noisy(1) if pair.change == change)
    assert compare.found_of(compare.judged(pair)) == "none"
