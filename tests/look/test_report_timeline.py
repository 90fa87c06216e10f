"""The page that a run writes at its end has the timeline, and costs little."""

import json
import re
import time

import pytest

import helpers
import made_stores
from finitude.live import document, in_report

PAGE = '<html><script type="application/json" id="report">{}</script></html>'
TIMELINE = re.compile('<script type="application/json" id="timeline">(.*?)</script>', re.DOTALL)
TRAIN = """
for i in range(40):
    opt.zero_grad()
    loss_of(batches[i % 2]).backward()
    opt.step()
"""


def timeline_of(path):
    found = TIMELINE.search(path.read_text())
    return found and json.loads(found[1])


@pytest.fixture
def run(tmp_path):
    folder = made_stores.run(tmp_path / "run", steps=300, parameters=4)
    (folder / "report.html").write_text(PAGE)
    return folder


def test_a_page_gets_series_map_and_events(run):
    assert in_report.add(str(run), str(run / "report.html"), is_ending=True)
    found = timeline_of(run / "report.html")
    (process,) = found["runs"][0]["processes"]
    assert len(process["series"]) == 5 and process["events"] and found["maps"] and not found["live"]


def test_a_large_store_gives_no_map(run, monkeypatch):
    monkeypatch.setattr(in_report, "END_MAP_BYTES", 1000)
    assert in_report.add(str(run), str(run / "report.html"), is_ending=True)
    assert timeline_of(run / "report.html")["maps"] == []
    assert document.still(str(run))["maps"]


def test_what_takes_long_is_left_out(run, monkeypatch):
    monkeypatch.setattr(in_report, "END_SECONDS", -1.0)
    assert not in_report.add(str(run), str(run / "report.html"), is_ending=True)
    assert (run / "report.html").read_text() == PAGE
    assert in_report.add(str(run), str(run / "report.html"))


def test_a_long_run_ends_in_time(tmp_path):
    folder = made_stores.run(tmp_path / "run", steps=100_000, parameters=60)
    (folder / "report.html").write_text(PAGE)
    begun = time.process_time()
    in_report.add(str(folder), str(folder / "report.html"), is_ending=True)
    assert time.process_time() - begun < 0.5
    assert (folder / "report.html").stat().st_size < 4 << 20


def test_other_pages_stay_as_they_are(run, tmp_path):
    (run / "report.html").write_text("<html>a table</html>")
    assert not in_report.add(str(run), str(run / "report.html"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "report.html").write_text(PAGE)
    assert not in_report.add(str(tmp_path / "empty"), str(tmp_path / "empty" / "report.html"))


@pytest.mark.slow
@pytest.mark.parametrize("redact", [False, True])
def test_a_run_writes_its_own_timeline(tmp_path, redact):
    got = helpers.training(tmp_path, TRAIN, *(["--redact"] if redact else []))
    assert got.code == 0, got.text()
    (page,) = tmp_path.glob("finitude-runs/*/report.html")
    if 'id="report"' not in page.read_text():
        pytest.skip("finitude was built without node: its pages are tables")
    found = timeline_of(page)
    assert (found is None) == redact
    if not redact:
        assert "loss" in [one["quantity"] for one in found["runs"][0]["processes"][0]["series"]]
