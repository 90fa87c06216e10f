"""A few of the faults of `make test-ranks`: after each the run ends, and those alive have reported what is true."""

import pytest
from bench.rank_faults import cases, points
from bench.rank_faults.cases import Case

from helpers import finitude
from process_support import checked

pytestmark = pytest.mark.slow
CHOSEN = [
    Case("ddp", "stop", "second run", "kill", 0),
    Case("ddp", "stop", "capture", "vanish", 1),
    Case("ddp", "skip", "report", "raise", 0),
    Case("fsdp2", "stop", "vote", "end", 0),
    Case("fsdp2", "skip", "agreement", "kill", 1),
    Case("no_sync", "skip", "agreement", "late", 0),
    Case("tp", "stop", "report", "disk", 1),
]


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_a_fault_ends_in_true_reports(tmp_path, case):
    words = ["run", "--report", "report.json", "--on-alarm", case.policy, str(cases.PROGRAM)]
    got = checked(finitude(tmp_path, *words, env=case.environment()))
    assert cases.was_reached(got), got.text()
    assert not (found := cases.wrong(case, got)), f"{found}\n{got.text()}"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["kill", "stop", "late", "vanish"])
def test_a_fault_in_the_restarted_program_ends(tmp_path, kind):
    """Rank 1, which made the value, is explained all the same. What a rank writes there is not seen: files are put back."""
    case = Case("ddp", "stop", "restart", kind, 0)
    got = checked(finitude(tmp_path, "run", "--report", "report.json", str(cases.PROGRAM), env=case.environment()))
    assert not (found := cases.wrong(case, got)), f"{found}\n{got.text()}"
    made = cases.alarm_of(got, 1)
    assert made["rerun_by"] == "restart" and made["births"][0]["op"] == "aten::log", got.text()
    assert cases.alarm_of(got, 0) is not None, got.text()


def test_every_phase_and_kind_is_tried():
    every = cases.all_cases()
    assert len(set(every)) == len(every) >= 300
    assert {case.kind for case in every} == set(points.KINDS) and {case.phase for case in every} == set(cases.PHASES)


def test_a_lost_report_is_found_wrong(tmp_path):
    """The judgement itself: a rank that is alive and reported nothing, a birth that was none."""
    case = CHOSEN[0]
    words = ["run", "--report", "report.json", "--on-alarm", "stop", str(cases.PROGRAM)]
    got = finitude(tmp_path, *words, env=Case("ddp", "stop", "", "none", 0).environment())
    (tmp_path / points.MARK).touch()
    assert len(got.alarms) == 2 and "killed" in " ".join(cases.wrong(case, got)), got.text()
    cases.alarm_of(got, 1)["births"][0]["op"] = "aten::exp"
    got.report["alarms"] = [cases.alarm_of(got, 1)]
    other = Case("ddp", "stop", "vote", "late", 1)
    assert cases.wrong(other, got) == ["rank 0 is alive and has reported no alarm", "rank 1: born in aten::exp"]
