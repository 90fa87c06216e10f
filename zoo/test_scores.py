"""The score table as Markdown, and the judging of the peers."""

import json

import pytest

from zoo import cases, judge, peers, table
from zoo.runner import as_json

CASES = cases.load()


def summed(marks_of):
    """The JSON of a run in which every case has the marks that `marks_of` gives it."""
    results = [
        {
            "case": case,
            "marks": {**dict.fromkeys(judge.COLUMNS), **marks_of(case)},
            "got": {"verdict": "clean"},
            "cold": None,
            "seconds": 1.0,
            "timed_out": False,
            "note": "",
        }
        for case in CASES
    ]
    return as_json(judge.summarise(results), results, True)


def answer(case, right):
    """What a peer that is right, or wrong, in everything says of a case."""
    if not case.positive:
        return None if right else {"steps": [0], "line": 1, "op": "aten::log"}
    return {"steps": [case.expected["step"]], "line": min(case.lines), "op": "x"} if right else None


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.fast
def test_table_has_one_line_per_set_and_total():
    score = summed(
        lambda case: {"verdict": True, "exit": True, "step": case.set != "twin", "rows": "rows" in case.expected}
    )
    lines = table.markdown(score).splitlines()
    assert cells(lines[0]) == ["cases", *table.SHOWN.values()]
    by_title = {cells(line)[0]: cells(line) for line in lines[2:]}
    for name, title in cases.SETS.items():
        of = [case for case in CASES if case.set == name and case.positive]
        row = by_title[title]
        assert row[3] == (f"{0 if name == 'twin' else len(of)}/{len(of)}" if of else "")
    twins = len([case for case in CASES if case.set == "twin"])
    positives = len([case for case in CASES if case.positive])
    assert by_title["**all**"][3] == f"{positives - twins}/{positives}"
    assert by_title["reach"][-1] == "90 %"


@pytest.mark.fast
@pytest.mark.parametrize("right", [True, False])
def test_peer_is_judged_on_alarm_silence_step_line(right):
    rows = [
        {"expect": case.expected["expect"], "marks": {"somebody": peers.judge(answer(case, right), case)}}
        for case in CASES
    ]
    row = cells(table.peer_row("somebody", rows))
    alarms = len([case for case in CASES if case.expected["expect"] == "alarm"])
    positive = len([case for case in CASES if case.positive])
    silent = len(CASES) - positive
    full = [f"{n if right else 0}/{n}" for n in (alarms, silent, positive, positive)]
    assert [row[1], row[2], row[3], row[6]] == full
    assert row[4] == row[5] == row[7] == ""


@pytest.mark.fast
def test_the_table_is_printed_from_files(tmp_path, capsys):
    score = tmp_path / "score.json"
    score.write_text(json.dumps(summed(lambda case: {"verdict": True, "exit": True})))
    assert table.main([str(score)]) == 0
    assert capsys.readouterr().out.startswith("| cases |")
    assert table.main([]) == 2
