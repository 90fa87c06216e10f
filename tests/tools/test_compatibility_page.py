"""Each row of the table in docs/compatibility.md is what a run shows, and the page stands as the runs made it."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compatibility"))
import measure  # noqa: E402
import page  # noqa: E402
import rows  # noqa: E402

ROWS = [row for group in rows.GROUPS.values() for row in group]


def in_each_run():
    """Every second row, and of those that promise the same the first. What launchers start is shown by tests/cli and
    tests/ranks too."""
    alone = [row for row in ROWS if not row.launcher]
    promises = {}
    for row in alone:
        promises.setdefault((row.way, row.rerun, row.vetoed, row.verified, row.line, row.effects), row.name)
    return {*promises.values(), *(row.name for row in alone[::2])}


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=() if row.name in in_each_run() else pytest.mark.thorough) for row in ROWS],
)
def test_a_row_says_what_a_run_shows(tmp_path, row):
    found = measure.of(row, tmp_path)
    expected = page.expected_cells()[row.name]
    assert {column: found[column] for column in expected} == expected, found["output"]


def test_page_matches_the_generated_one():
    assert page.written() == page.body(page.expected_cells()), "run python tests/compatibility/page.py"


def test_there_are_enough_rows_and_no_two_alike():
    assert len(ROWS) >= 30 and len({row.name for row in ROWS}) == len({row.shape for row in ROWS}) == len(ROWS)
    assert {row.program for row in ROWS} == {p.stem for p in measure.PROGRAMS.glob("*.py")}


@pytest.mark.parametrize("program", sorted(measure.PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_every_program_marks_its_birth_and_nothing_else(program):
    text = program.read_text(encoding="ascii")
    assert len(measure.birth_lines(program)) > 0
    assert ("finitude" in text) == (program.stem == "given_step")
