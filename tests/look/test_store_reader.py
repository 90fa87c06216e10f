"""store.sqlite and events.jsonl are read while somebody writes them, and when somebody hostile wrote them."""

import math
import os

import pytest

import made_stores
from finitude.store import events, reader, runs

pytestmark = pytest.mark.fast


@pytest.fixture
def folder(tmp_path):
    return made_stores.run(tmp_path / "run")


def opened(folder):
    return reader.Store(str(folder / reader.NAME))


def refused(folder):
    with pytest.raises(reader.Unreadable) as caught:
        with opened(folder) as store:
            for one in store.series():
                store.points(one.id)
    return str(caught.value)


def test_reads_info_series_and_points(folder):
    with opened(folder) as store:
        assert store.info()["host"] == "here"
        series = store.series()
        assert [s.quantity for s in series[:5]] == list(made_stores.WHOLE)
        assert series[5].name() == "gradient_absmax/AdamW/layers.0.weight"
        points = store.points(series[0].id)
        assert (len(points), points[0].step, points[-1].last_step) == (1000, 0, 999)
        assert points[0].min < points[0].first < points[0].max
        assert [p.step for p in store.points(series[0].id, 997)] == [997, 998, 999]
        assert store.range([series[0].id]) == {series[0].id: (1, 999, 1000)}


def test_reads_what_a_writer_has_just_committed(folder):
    with made_stores.opened(folder) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("INSERT INTO point VALUES(1, 1000, 1000, 0, 7, 7, 7, 7)")
        db.commit()
        with opened(folder) as store:
            assert store.points(1, 1000)[0].last == 7


def test_a_store_at_rest_gets_no_files_beside_it(folder):
    with made_stores.opened(folder) as db:
        db.execute("PRAGMA journal_mode = WAL")
    before = sorted(os.listdir(folder))
    with opened(folder) as store:
        assert store.series()
    assert sorted(os.listdir(folder)) == before


def test_largest_fills_parts_within_long_points(tmp_path):
    folder = made_stores.store(tmp_path, steps=1000, parameters=2, most=4)
    with opened(folder) as store:
        found = store.largest("gradient_absmax", "AdamW", 10)
    assert found.names == ["layers.0.weight", "layers.0.bias"] and (found.first, found.last) == (0, 999)
    assert all(value is not None for row in found.values for value in row)
    assert found.values[0][0] == pytest.approx((0.2 + 1e-4) * 1.05)


def test_nothing_but_finite_numbers_comes_out(folder):
    with made_stores.opened(folder) as db:
        db.execute("UPDATE point SET first = 'text', last = x'00', min = ?, max = NULL", (-math.inf,))
        db.execute("UPDATE series SET parameter = ? WHERE id = 6", ("a\x1b[31m" + "b" * 5000,))
        db.execute("UPDATE info SET value = x'ff' WHERE key = 'host'")
    with opened(folder) as store:
        point = store.points(1)[0]
        assert (point.first, point.last, point.min, point.max) == (None, None, None, None)
        assert "\x1b" not in store.series()[5].parameter and len(store.series()[5].parameter) == reader.MOST_TEXT
        assert "host" not in store.info()


@pytest.mark.parametrize("change", ["step = -1", "step = 'x'", "last_step = 3", "last_step = 1e300"])
def test_a_step_that_is_none_is_refused(folder, change):
    with made_stores.opened(folder) as db:
        db.execute(f"UPDATE point SET {change} WHERE series = 1 AND step = 10")
    assert "step" in refused(folder) or "point" in refused(folder)


def test_another_version_is_named(folder):
    with made_stores.opened(folder) as db:
        db.execute("PRAGMA user_version = 2")
    assert refused(folder) == "it is of version 2, not 1"


def test_a_view_that_never_ends_is_not_run(folder, monkeypatch):
    with made_stores.opened(folder) as db:
        db.execute("DROP TABLE point")
        db.execute(
            "CREATE VIEW point AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i AS series FROM n"
        )
    assert "tables" in refused(folder)
    monkeypatch.setattr(reader, "SECONDS", 0.1)
    with made_stores.opened(made_stores.store(folder / "b")) as db:
        pass
    with opened(folder / "b") as store:
        endless = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        with pytest.raises(reader.Unreadable, match="interrupted"):
            list(store._rows(endless, (), 1))


def test_a_store_cannot_be_written_through(folder):
    with opened(folder) as store:
        with pytest.raises(reader.Unreadable):
            list(store._rows("DELETE FROM point", (), 1))


def test_too_many_rows_are_cut(folder, monkeypatch):
    monkeypatch.setattr(reader, "MOST_POINTS", 10)
    monkeypatch.setattr(reader, "MOST_SERIES", 3)
    with opened(folder) as store:
        assert len(store.series()) == 3 and len(store.points(1)) == 10


def test_what_is_no_store_is_refused(folder):
    path = folder / reader.NAME
    whole = path.read_bytes()
    for damaged in (b"", b"SQLite format 3\0", b"text" * 100, whole[:5000], whole[:100] + os.urandom(8000)):
        path.write_bytes(damaged)
        assert refused(folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError):
        opened(folder)


def test_a_link_as_its_log_is_refused(folder):
    (folder / "else").write_bytes(b"mine")
    (folder / "store.sqlite-shm").symlink_to(folder / "else")
    assert "no plain file" in refused(folder)
    assert (folder / "else").read_bytes() == b"mine"


def test_damage_anywhere_raises_nothing_else(folder):
    path = folder / reader.NAME
    whole = bytearray(path.read_bytes())
    for at in range(100, len(whole), max(1, len(whole) // 60)):
        damaged = bytearray(whole)
        damaged[at : at + 16] = os.urandom(16)
        path.write_bytes(damaged)
        try:
            with opened(folder) as store:
                for one in store.series()[:8]:
                    store.points(one.id)
                store.largest("gradient_absmax", "AdamW", 16)
        except reader.Unreadable:
            pass


def test_events_are_typed_and_continued(folder):
    found, at = events.read(str(folder))
    assert [e["kind"] for e in found] == ["start", "warning", "checkpoint", "alarm", "alarm", "end"]
    assert found[1]["since"] == 600 and found[1]["horizon"] == [200, 400]
    assert (found[4]["since"], found[4]["op"], found[4]["line"], found[4]["cause"]) == (
        700,
        "aten::log",
        87,
        "log-of-zero",
    )
    with (folder / events.NAME).open("a") as f:
        f.write('{"kind": "warning", "step": true, "text": 5}\n[1]\nno json\n' + "[" * 5000 + '\n{"kind": "end"')
    more, then = events.read(str(folder), at)
    assert [(e["kind"], e["step"], e["text"]) for e in more] == [("warning", None, "")]
    with (folder / events.NAME).open("a") as f:
        f.write("}\n")
    assert [e["kind"] for e in events.read(str(folder), then)[0]] == ["end"]


def test_runs_and_ranks_are_found(tmp_path):
    for name in ("20260101-000000-a-1", "20260102-000000-b-1"):
        made_stores.run(tmp_path / name, steps=10)
    made_stores.store(tmp_path / "20260103-000000-c-1" / "rank-1", steps=10)
    (tmp_path / "notes").mkdir()
    names = [os.path.basename(run) for run in runs.found(str(tmp_path))]
    assert names == ["20260103-000000-c-1", "20260102-000000-b-1", "20260101-000000-a-1"]
    ranks = runs.processes(str(tmp_path / names[0]))
    assert [os.path.basename(path) for path in ranks] == ["rank-1"]
    assert runs.found(str(tmp_path / names[1])) == [str(tmp_path / names[1])]
    assert runs.found(str(tmp_path / names[1] / reader.NAME)) == [str(tmp_path / names[1])]
    state = runs.State(str(tmp_path / names[1]))
    assert state.now() == "killed"
    report = tmp_path / names[1] / "report.json"
    report.write_text('{"outcome": "clean"}')
    assert state.now() == "finished"
    report.write_text('{"outcome": "running", "under_way": {}}')
    assert state.now() == "killed"
    report.write_text("[" * 100_000)
    assert state.now() == "killed"
    assert runs.found(str(tmp_path / "notes")) == [] == runs.found(str(tmp_path / "nowhere"))
