"""`finitude list`: what it refuses, and runs whose report cannot be read."""

import helpers


def test_it_refuses_what_it_does_not_know(tmp_path):
    for words in (["--bogus"], [str(tmp_path), "another"]):
        got = helpers.finitude(tmp_path, "list", *words)
        assert got.code == 2 and words[-1] in got.err, got.text()


def test_unreadable_report_is_listed_as_such(tmp_path):
    run = tmp_path / "20260101-000000-train-1"
    run.mkdir()
    (run / "report.json").write_text("{")
    (run / "run.json").write_text("{}")
    got = helpers.finitude(tmp_path, "list", str(tmp_path))
    assert got.code == 0 and "report.json cannot be read" in got.out and "killed" not in got.out
