"""`finitude list`: what it refuses, and runs whose report cannot be read."""

import json
import pathlib

import pytest

import helpers
from finitude.cli import main, offline

SAMPLE = pathlib.Path(__file__).parents[1] / "data" / "reports" / "loss_forward.json"


def test_it_refuses_what_it_does_not_know(tmp_path):
    for words in (["--bogus"], [str(tmp_path), "another"]):
        got = helpers.finitude(tmp_path, "list", *words)
        assert got.code == 2 and words[-1] in got.err, got.text()


def test_names_of_any_length_are_columns(tmp_path):
    names = ["20260101-000000-train-1", "20260102-000000-fine_tune-23456", "20260103-" + "x" * 90]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    long, *lines = helpers.finitude(tmp_path, "list", str(tmp_path)).out.splitlines()
    assert long.startswith(names[2] + "  killed") and [line.split()[0] for line in lines] == names[1::-1]
    assert {line.index("  killed") for line in lines} == {48}, lines  # one long name does not push all others away


def test_letters_of_more_than_a_byte_are_columns_too(tmp_path):
    for name in ("20260101-000000-train-1", "20260102-000000-\u00fcbung-\u00e9-22"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    lines = helpers.finitude(tmp_path, "list", str(tmp_path)).out.splitlines()
    assert len(lines) == 2 and len({line.index("  killed") for line in lines}) == 1, lines


def test_policy_of_a_run_with_damaged_events_knows_the_alarms_of_its_report(tmp_path):
    report, run = json.loads(SAMPLE.read_text()), tmp_path / "run"
    run.mkdir()
    (run / "events.jsonl").write_text('{"kind": "alarm", "st\n{"kind": "alarm", "step": 900, "optimizer": "SGD"}\n')
    got = helpers.finitude(tmp_path, "policy", str(run), "--on-alarm", "skip", "--json")
    assert [one["step"] for one in json.loads(got.out)["decisions"]] == [900] and "cannot be read" in got.err
    (run / "report.json").write_text(json.dumps(report))
    got = helpers.finitude(tmp_path, "policy", str(run), "--on-alarm", "skip", "--json")
    assert [one["step"] for one in json.loads(got.out)["decisions"]] == [*(a["step"] for a in report["alarms"]), 900]
    (run / "report.json").write_text("{")
    got = helpers.finitude(tmp_path, "report", str(run))
    assert got.code == 3 and f"{run} holds a report.json that is not JSON" in got.err, got.text()


def test_a_file_that_no_word_may_open_is_named(monkeypatch, capsys):
    """As one of another user; root, as whom tests may run, opens all."""

    def refused(rest):
        raise PermissionError(13, "Permission denied", "runs/\x1bstore.sqlite")

    monkeypatch.setattr(offline, "rows", refused)
    assert main.main(["rows"]) == 3
    assert capsys.readouterr() == ("", "finitude: runs/?store.sqlite: Permission denied\n")
    monkeypatch.setenv("FINITUDE_DEBUG", "1")
    with pytest.raises(PermissionError):
        main.main(["rows"])


def test_unreadable_report_is_listed_as_such(tmp_path):
    run = tmp_path / "20260101-000000-train-1"
    run.mkdir()
    (run / "report.json").write_text("{")
    (run / "run.json").write_text("{}")
    got = helpers.finitude(tmp_path, "list", str(tmp_path))
    assert got.code == 0 and "report.json cannot be read" in got.out and "killed" not in got.out


def test_alarms_that_a_report_does_not_list_are_counted(tmp_path):
    """Also where the process was killed after its report was written: its events hold the others."""
    report = {**json.loads(SAMPLE.read_text()), "alarms_unlisted": 300}
    events = "".join(
        f'{{"kind": "alarm", "step": {i}, "explained": {e}}}\n' for i in range(5085) for e in ("false", "true")
    )
    for name, under_way in (("20260101-000000-ended-1", {}), ("20260101-000001-killed-1", {"under_way": {"pid": 1}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps({**report, **under_way}))
        (tmp_path / name / "events.jsonl").write_text(events)
    got = helpers.finitude(tmp_path, "list", "--json", str(tmp_path))
    counts = {one["run"]: one["alarms"] for one in json.loads(got.out)}
    assert counts["20260101-000000-ended-1"] == len(report["alarms"]) + 300, got.text()
    assert counts["20260101-000001-killed-1"] == 5085, got.text()


def test_alarm_that_ends_a_run_is_listed_whatever_their_number(tmp_path):
    text = """
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(4000):
    loss = model(torch.ones(2, 4)).pow(2).mean() * (float("nan") if i % 3 or i > 1600 else 1.0)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    got = helpers.run(tmp_path, "import torch\n" + text, "--on-alarm", "skip")
    last = got.alarms[-1]
    assert len(got.alarms) == 1000 and got.report["alarms_unlisted"] > 60 and last["step"] > 1600, got.err[-500:]
    assert "stopped" in last["action"] and f"step {last['step']}: " in got.err, got.err[-500:]
    assert f"{1000 + got.report['alarms_unlisted']} alarms" in helpers.finitude(tmp_path, "list", "finitude-runs").out
