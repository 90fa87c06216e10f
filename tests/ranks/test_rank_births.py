"""Births on one rank of a training: what has to hold of a report is judged, and a few are tried."""

import dataclasses

import pytest
from bench.rank_births import __main__ as births, cases

CASE = cases.Case("ddp", "log", 2, 1, None, 3, 0, "skip", 0)


def alarm(rank, line, step=3, phase="forward", file=cases.PROGRAM):
    return {
        "rank": rank,
        "step": step,
        "births": [{"phase": phase, "op": "aten::log", "file": str(file), "line": line}],
    }


def test_every_kind_and_training_is_drawn():
    drawn = cases.drawn(200)
    assert {c.kind for c in drawn} == set(cases.KINDS) and {c.strategy for c in drawn} == set(cases.STRATEGIES)
    assert all(0 <= c.rank < c.ranks for c in drawn) and len({c.line() for c in drawn}) == len(cases.KINDS)
    assert drawn == cases.drawn(200) != cases.drawn(200, seed=1)


@pytest.mark.parametrize(
    ("alarms", "found"),
    [
        ([], "no alarm"),
        ([alarm(0, 1)], "born on rank 0"),
        ([alarm(1, 1)], "born at program.py:1"),
        ([alarm(1, CASE.line(), file="other.py")], "born at other.py"),
        ([alarm(1, CASE.line(), step=4)], "rank 1: step 4"),
        ([alarm(1, CASE.line())], "rank 0: no alarm"),
        ([alarm(1, CASE.line()), alarm(0, 7)], "rank 0: forward aten::log"),
        ([alarm(1, CASE.line()), alarm(0, 7, phase="communication")], None),
    ],
)
def test_judgement(alarms, found):
    wrong = cases.wrong(CASE, alarms)
    assert any(text.startswith(found) for text in wrong) if found else wrong == [], wrong


def test_finite_ranks_need_no_alarm_under_stop():
    gradient = dataclasses.replace(CASE, kind="gradient", policy="stop")
    assert cases.wrong(gradient, [alarm(1, gradient.line())]) == []
    assert cases.wrong(dataclasses.replace(gradient, policy="skip"), [alarm(1, gradient.line())]) == [
        "rank 0: no alarm"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        cases.Case("zero", "root_of_zero", 2, 1, None, 2, 0, "stop", 1),
        cases.Case("sp", "division", 2, 0, None, 3, 0, "skip", 2),
        cases.Case("ep", "exp", 2, 1, None, 1, 0, "stop", 3),
        # What rank 1 holds is finite. It gives rank 0 the NaN.
        cases.Case("pp", "norm_of_zero", 2, 1, None, 3, 0, "stop", 5),
    ],
    ids=str,
)
def test_rank_and_line_are_named(case):
    _, _, wrong, text = births.run(case, is_cold=False)
    assert wrong == [], text
