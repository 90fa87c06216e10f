"""`finitude list`: what it refuses, and runs whose report cannot be read."""

from finitude.words import offline


def test_it_refuses_what_it_does_not_know(tmp_path, capsys):
    for words in (["--bogus"], [str(tmp_path), "another"]):
        assert offline.list(words) == 2
        assert words[-1] in capsys.readouterr().err


def test_a_report_that_cannot_be_read_is_called_that(tmp_path, capsys):
    run = tmp_path / "20260101-000000-train-1"
    run.mkdir()
    (run / "report.json").write_text("{")
    (run / "run.json").write_text("{}")
    assert offline.list([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "report.json cannot be read" in told and "killed" not in told
