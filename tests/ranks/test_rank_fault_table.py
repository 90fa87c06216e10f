"""docs/rank-faults.md: cells that were tried again come into the table, and nothing else in it changes."""

import pathlib

from bench.rank_faults import cases, table

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "rank-faults.md"


def results(strategy, phase, bad=()):
    """Of one cell. bad: kinds that do not end as they should."""
    chosen = [c for c in cases.all_cases() if (c.strategy, c.policy, c.phase) == (strategy, "skip", phase)]
    return [(c, 1.0, True, ["why"] if c.kind in bad else [], "", {}) for c in chosen]


def test_cells_tried_again_replace_the_old():
    whole = [(c, 2.0, True, ["old"] if c.kind == "late" else [], "", {}) for c in cases.all_cases()]
    before = table.page(whole)
    after = table.merged(before, results("no_sync", "vote") + results("tp", "report", ("kill", "end")))
    rows = {line.partition(" |")[0]: line for line in after.splitlines() if line.startswith("|")}
    assert rows["| no_sync, `skip`"].split(" | ")[3] == "7 of 7"
    assert rows["| tp, `skip`"].endswith("| 5 of 7 |") and rows["| tp, `skip`"].count("6 of 7") == 5
    assert after.count("why") == 2 and after.count("no_sync skip, vote") == 0
    assert after.count(": old") == before.count(": old") - 2
    good = len(whole) - before.count(": old") + 1 - 1
    assert f"{len(whole)} came, {good} of them" in after and "no_sync `skip` vote, tp `skip` report." in after
    assert "Everything held." in table.page(results("no_sync", "vote"))


def test_only_whole_cells_are_merged():
    cell = [one[0] for one in results("no_sync", "vote")]
    assert table.are_whole_cells(cell) and not table.are_whole_cells(cell[1:]) and not table.are_whole_cells([])


def test_the_page_in_docs_is_read():
    before = PAGE.read_text(encoding="utf-8")
    (row,) = [line for line in table.merged(before, []).splitlines() if line.startswith("| no_sync")]
    assert row in before
