"""The zoo as tests: one run of the runner, one test per case, and the reach of the whole; and tests of the judge
itself."""

import json
import subprocess
import sys

import pytest

from zoo import cases, judge

CASES = cases.load()
BY_SLUG = {case.slug: case for case in CASES}


@pytest.fixture(scope="session")
def score(tmp_path_factory):
    out = tmp_path_factory.mktemp("zoo") / "score.json"
    run = subprocess.run(
        [sys.executable, "-m", "zoo.runner", "--json", str(out)], cwd=cases.ROOT.parent, capture_output=True, text=True
    )
    assert out.exists(), run.stdout + run.stderr
    return json.loads(out.read_text())


@pytest.mark.zoo
@pytest.mark.parametrize("slug", list(BY_SLUG))
def test_case(score, slug):
    row = next(r for r in score["cases"] if r["slug"] == slug)
    wrong = [column for column in ("verdict", "step", "exit") if row["marks"][column] is False]
    assert not wrong, row
    assert row["cold_agrees"] is not False, row["stories"]


@pytest.mark.zoo
def test_reach(score):
    summary = {k: tuple(v) if isinstance(v, list) else v for k, v in score["summary"].items()}
    assert {row["slug"] for row in score["cases"]} == set(BY_SLUG)
    assert any(row["cold_agrees"] is not None for row in score["cases"])
    assert judge.passes(summary), summary


@pytest.mark.fast
def test_the_zoo_is_whole():
    assert len(BY_SLUG) == len(CASES)
    count = {name: len([case for case in CASES if case.set == name]) for name in cases.SETS}
    assert sum(count.values()) == len(CASES) and count["zoo"] == 100 + 2  # two cases come in two forms
    assert count["own-first"] >= 20 and count["own-second"] >= 20
    for case in CASES:
        assert case.set == "zoo" or case.expected["source"]
        assert case.script.parent.parent.name == ("positive" if case.positive else "negative")
        assert case.slug.split("_")[0] == case.id
        assert bool(case.lines) == case.positive
        assert "finitude" not in case.script.read_text()


def good_report(case):
    """What a faultless tool would say."""
    e = case.expected
    birth = {
        "phase": e["phase"][0],
        "op": (e.get("ops") or ["aten::none"])[0],
        "file": str(case.script),
        "line": min(case.lines),
        "rows": e.get("rows", []),
    }
    finding = {
        "step": e["step"],
        "micro_batch": e.get("micro_batch", 0),
        "births": [birth],
        "cause": {"class": e["cause"][0]},
    }
    if e["expect"] == "advisory":
        return {"schema": 1, "outcome": "clean", "alarms": [], "advisories": [finding]}
    finding.update(sink={"kind": e["sink"][0]}, weights=(e.get("weights") or ["clean"])[0])
    return {"schema": 1, "outcome": "alarm", "alarms": [finding], "advisories": []}


def result(case, report, exit_code):
    marks, got = judge.judge(report, exit_code, case)
    return {"case": case, "marks": marks, "got": got}


def faultless():
    clean = {"schema": 1, "outcome": "clean", "alarms": [], "advisories": []}
    out = []
    for case in CASES:
        code = int(case.expected["expect"] == "alarm" and not case.expected.get("harmless"))
        out.append(result(case, good_report(case) if case.positive else clean, code))
    return out


@pytest.mark.fast
def test_judge_accepts_the_truth():
    results = faultless()
    assert [r["case"].slug for r in results if False in r["marks"].values()] == []
    assert judge.passes(judge.summarise(results))


@pytest.mark.fast
@pytest.mark.parametrize(
    "column, change",
    [
        ("step", lambda a: a.update(step=a["step"] + 1)),
        ("sink", lambda a: a["sink"].update(kind="nowhere")),
        ("phase", lambda a: a["births"][0].update(phase="nowhen")),
        ("op", lambda a: a["births"][0].update(op="aten::view")),
        ("line", lambda a: a["births"][0].update(line=100000)),
        ("line", lambda a: a["births"][0].update(file="/elsewhere/train.py")),
        ("cause", lambda a: a["cause"].update({"class": "unknown"})),
        ("rows", lambda a: a["births"][0].update(rows=[99])),
        ("weights", lambda a: a.update(weights="burnt")),
    ],
)
def test_judge_sees_each_fault(column, change):
    case = next(
        c
        for c in CASES
        if c.positive
        and c.expected["expect"] == "alarm"
        and c.expected.get("ops")
        and "rows" in c.expected
        and not c.expected.get("harmless")
    )
    report = good_report(case)
    change(report["alarms"][0])
    marks = result(case, report, 1)["marks"]
    assert [name for name, mark in marks.items() if mark is False] == [column]


@pytest.mark.fast
def test_forward_line_of_a_backward_birth_counts():
    case = next(c for c in CASES if c.positive and c.expected["phase"] == ["backward"])
    report = good_report(case)
    birth = report["alarms"][0]["births"][0]
    birth["forward"] = {"file": birth["file"], "line": birth["line"]}
    birth["line"] = 100000
    assert result(case, report, 1)["marks"]["line"] is True


@pytest.mark.fast
@pytest.mark.parametrize(
    "report",
    [
        None,
        {},
        {"schema": 2},
        {"schema": 1, "outcome": "unwatched", "alarms": []},
        {"schema": 1, "outcome": "alarm", "alarms": [{"step": 0}]},
    ],
)
def test_benign_run_passes_only_when_watched_and_silent(report):
    case = next(c for c in CASES if not c.positive)
    assert result(case, report, 0)["marks"]["verdict"] is False
    results = faultless()
    results = [result(case, report, 0) if r["case"] is case else r for r in results]
    assert not judge.passes(judge.summarise(results))


@pytest.mark.fast
def test_statement_lines():
    source = "for a in [\n        1]:\n    b = (a +\n         2)\n    c = 3\n"
    assert cases.statement_lines(source, "2)") == {3, 4}
    assert cases.statement_lines(source, "for a") == {1, 2}
    assert cases.statement_lines(source, "c = 3") == {5}
    with pytest.raises(ValueError):
        cases.statement_lines(source, "a")


# The sets whose variants are run by every `make test`; without --set the two tools run all, which takes twelve minutes.
SHUFFLED = "acceptance,twin,own-second"


def run_tool(*words):
    run = subprocess.run([sys.executable, "-m", *words], cwd=cases.ROOT.parent, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


@pytest.mark.slow
def test_score_ignores_names_lines_seeds_and_sizes():
    code, said = run_tool("zoo.runner", "--metamorphic", "--set", SHUFFLED, "--cold-sample", "off")
    assert code == 0, said


# The cases whose operators hand out most memory of their own; of all of them ten times in test-thorough.
@pytest.mark.slow
@pytest.mark.parametrize("which", [("--filter", "half", "--sample", "2")], ids=["half precision"])
def test_a_case_is_explained_alike_each_time(which):
    code, said = run_tool("zoo.repeat", *which, "--times", "3")
    assert code == 0, said


@pytest.mark.thorough
def test_every_case_is_explained_alike_ten_times():
    code, said = run_tool("zoo.repeat", "--times", "10")
    assert code == 0, said


@pytest.mark.thorough
def test_what_variants_declare_is_true_without_us():
    code, said = run_tool("zoo.plain", "--set", SHUFFLED, "--variant-seeds", "1")
    assert code == 0, said
