"""Every row of rows.json is what comes out: the frameworks' part of docs/compatibility.md."""

import functools
import json
import os
import pathlib

import pytest
from framework_runs import assert_healthy, needs, run
from table import BAD, Plain, configurations, measure, rows, versions

pytestmark = needs("lightning", "transformers", "accelerate", "tensorboard")
PROGRAMS = sorted({row["program"] for row in rows()["rows"]})
ROWS = [pytest.param(row, id=f"{row['program'][:-3]}-{row['configuration']}") for row in rows()["rows"]]
MEASURED = ("detected", "step", "vetoed", "way", "rerun", "verified", "line", "effects")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return functools.cache(lambda program: Plain(program, tmp_path_factory.mktemp("plain")))


def test_the_versions_are_those_of_the_page():
    assert versions() == rows()["versions"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_healthy_trainings_are_left_alone(tmp_path, plain, program):
    watched = run(tmp_path / "watched", program, ",".join(configurations(program)), options=[])
    healthy = plain(program).healthy
    assert_healthy(watched, healthy)
    for file in (f for kind in ("csv", "txt") for f in healthy.folder.glob(f"*/**/*.{kind}")):
        assert (watched.folder / file.relative_to(healthy.folder)).read_bytes() == file.read_bytes(), file


@pytest.mark.parametrize("row", ROWS)
def test_the_row_is_what_comes_out(tmp_path, plain, row):
    program, name = row["program"], row["configuration"]
    stopped = run(tmp_path / "stopped", program, name, str(BAD), options=[])
    skipped = run(tmp_path / "skipped", program, name, str(BAD), options=["--on-alarm", "skip"])
    assert stopped.alarms and skipped.code == 0 and skipped.alarms, stopped.text() + skipped.text()
    found = measure(program, name, stopped, skipped, plain(program))
    if folder := os.environ.get("FINITUDE_ROWS"):  # for writing rows.json again
        pathlib.Path(folder, f"{program}-{name}.json").write_text(json.dumps({**row, **found}))
    expected = {key: row.get(key) for key in MEASURED}
    assert found == expected, (skipped.alarms[0]["rerun_text"], skipped.text())
