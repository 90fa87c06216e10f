"""`finitude live`: who is answered, what changes while a run trains, and what a page gets that comes back."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import helpers
import made_stores
from finitude.live import document, page, server


@pytest.fixture
def folder(tmp_path):
    made_stores.run(tmp_path / "runs" / "20260101-000000-a-1", steps=20, parameters=2)
    return tmp_path / "runs"


@contextlib.contextmanager
def serving(path):
    with server.Server(str(path), 0) as one:
        threading.Thread(target=one.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield one
        finally:
            one.is_ending.set()
            one.shutdown()


@pytest.fixture
def live(folder, monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.05)
    with serving(folder) as one:
        yield one


def get(live, path="/", token=None, **headers):
    port = live.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    token = live.token if token is None else token
    query = f"{'&' if '?' in path else '?'}token={token}" if token else ""
    connection.request("GET", path + query, headers={"Host": f"127.0.0.1:{port}", **headers})
    return connection.getresponse()


class Events:
    """A page that listens."""

    def __init__(self, live, query="", last_id=None):
        more = {"Last-Event-ID": last_id} if last_id else {}
        self.answer, self.id = get(live, "/events" + query, **more), last_id

    def next(self):
        """(kind, data)"""
        found = {}
        while line := self.answer.fp.readline().decode().rstrip("\n"):
            key, _, value = line.partition(": ")
            found[key] = value
        if "event" not in found:
            raise EOFError
        self.id = found["id"]
        return found["event"], json.loads(found["data"])

    def close(self):
        self.answer.close()


def test_only_who_has_the_token_is_answered(live):
    assert get(live).status == 200
    for token in ("", "x", live.token[:-1], live.token + "x", "%00"):
        for path in ("/", "/events", "/metrics", "/maps", "/nothing"):
            answer = get(live, path, token=token or False)
            assert answer.status == 401 and live.token.encode() not in answer.read(), (token, path)


def test_names_that_lead_here_are_refused(live):
    port = live.server_address[1]
    assert get(live, Host=f"localhost:{port}").status == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1.evil.example:{port}",
        "",
    ):
        assert get(live, Host=host).status == 403, host


def test_it_listens_on_the_loopback_interface(live):
    assert live.server_address[0] == "127.0.0.1" and live.address().startswith("http://127.0.0.1:")


def test_answers_carry_strict_policies(live):
    for path in ("/", "/metrics", "/maps", "/nothing"):
        headers = get(live, path).headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert headers["Cache-Control"] == "no-store" and "Access-Control-Allow-Origin" not in headers


def test_nothing_but_get_is_taken(live):
    connection = http.client.HTTPConnection(*live.server_address)
    connection.request("POST", f"/?token={live.token}")
    assert connection.getresponse().status == 501


def test_metrics_take_a_bearer(live):
    answer = get(live, "/metrics", token=False, Authorization=f"Bearer {live.token}")
    text = answer.read().decode()
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'finitude_step{run="20260101-000000-a-1",rank="0",optimizer="AdamW"} 19' in text


def test_the_map_holds_every_parameter(tmp_path):
    made_stores.run(tmp_path / "20260101-000000-a-1", steps=20, parameters=2, dtype="float32")
    with serving(tmp_path) as live:
        (found,) = json.loads(get(live, "/maps").read())
    assert found["optimizer"] == "AdamW"
    for quantity in document.MAPS:
        assert found[quantity]["names"] == ["layers.0.weight", "layers.0.bias"]
        assert (found[quantity]["first"], found[quantity]["last"]) == (0, 19)


def test_a_page_hears_what_is_new(live, folder):
    run = folder / "20260101-000000-a-1"
    events = Events(live)
    assert events.next() == ("runs", [run.name])
    kind, first = events.next()
    (process,) = first["processes"]
    assert (kind, first["name"], first["state"]) == ("run", run.name, "killed")
    assert [s["replace"] for s in process["series"]] == [True] * 5 and process["parameters"] == 4
    assert process["series"][0]["step"] == list(range(20)) and len(process["events"]) == 6
    with made_stores.opened(run) as db:
        db.execute("INSERT INTO point VALUES(1, 20, 20, 0, 7, 7, 7, 7)")
    made_stores.events(run, made_stores.event("warning", 20, "new"))
    new = [events.next()[1]["processes"][0]]
    if not (new[0]["series"] and new[0]["events"]):
        new.append(events.next()[1]["processes"][0])
    (series,) = [s for one in new for s in one["series"]]
    assert (series["replace"], series["step"], series["last"]) == (
        False,
        [19, 20],
        [pytest.approx(series["last"][0]), 7],
    )
    assert [e["text"] for one in new for e in one["events"]] == ["new"]
    events.close()


def test_a_series_that_became_coarser_comes_whole(folder):
    run = folder / "20260101-000000-a-1"
    follower = document.Follower(str(run))
    follower.changes()
    assert follower.changes()["processes"][0]["series"] == []
    with made_stores.opened(run) as db:
        db.execute("DELETE FROM point WHERE series = 1 AND step % 2")
        db.execute("UPDATE point SET last_step = step + 1 WHERE series = 1")
    (series,) = follower.changes()["processes"][0]["series"]
    assert series["replace"] and series["step"] == list(range(0, 20, 2))


def test_a_page_that_comes_back_goes_on(live, folder):
    run = folder / "20260101-000000-a-1"
    events = Events(live)
    events.next()
    events.next()
    events.close()
    with made_stores.opened(run) as db:
        db.execute("INSERT INTO point VALUES(1, 20, 20, 0, 7, 7, 7, 7)")
    key, until = events.id.partition(":")[0], time.monotonic() + 10
    while key not in live._streams and time.monotonic() < until:  # the server notices that nobody listens
        time.sleep(0.02)
    again = Events(live, last_id=events.id)
    kind, data = again.next()
    assert kind == "run" and [s["replace"] for s in data["processes"][0]["series"]] == [False]
    again.close()
    lost = Events(live, last_id="0123456789abcdef:7")
    assert lost.next()[0] == "runs"
    assert all(s["replace"] for s in lost.next()[1]["processes"][0]["series"])
    lost.close()


def test_a_run_that_begins_appears(live, folder):
    events = Events(live)
    events.next()
    events.next()
    made_stores.run(folder / "20260202-000000-b-1", steps=3, parameters=0)
    assert events.next() == ("runs", ["20260202-000000-b-1", "20260101-000000-a-1"])
    with pytest.raises(EOFError):  # so that the page asks again
        while True:
            events.next()
    again = Events(live, last_id=events.id)
    again.next()
    assert again.next()[1]["name"] == "20260202-000000-b-1"
    again.close()


def test_a_run_that_begins_again_comes_whole(folder):
    run = folder / "20260101-000000-a-1"
    follower = document.Follower(str(run))
    follower.changes()
    (run / "store.sqlite").rename(run / "kept")  # so that its inode is not used again
    made_stores.store(run, steps=7, parameters=0)
    series = follower.changes()["processes"][0]["series"]
    assert len(series) == 5 and all(s["replace"] and len(s["step"]) == 7 for s in series)


def test_several_runs_are_followed_by_name(live, folder):
    made_stores.run(folder / "20260202-000000-b-1", steps=3, parameters=0)
    events = Events(live, "?run=20260101-000000-a-1&run=20260202-000000-b-1&run=../../etc")
    events.next()
    assert {events.next()[1]["name"], events.next()[1]["name"]} == {"20260101-000000-a-1", "20260202-000000-b-1"}
    events.close()


def test_a_damaged_store_is_reported_once(live, folder):
    (folder / "20260101-000000-a-1" / "store.sqlite").write_bytes(b"damaged")
    events = Events(live)
    events.next()
    assert events.next()[1]["processes"][0]["trouble"] == "store.sqlite: it is no SQLite file"
    events.close()


def test_many_connections_leave_room(folder, monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 2)
    with serving(folder) as one:
        held = [socket.create_connection(one.server_address) for _ in range(2)]
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            for _ in range(20):
                get(one)
        for connection in held:
            connection.close()


def test_text_of_a_run_cannot_leave_its_place(folder, monkeypatch, tmp_path):
    hostile = "</script><script>alert(1)</script>"
    made_stores.events(folder / "20260101-000000-a-1", made_stores.event("warning", 1, hostile))
    found = document.still(str(folder / "20260101-000000-a-1"))
    filled = page.filled("<title>@@title@@</title><script>@@data@@</script>", hostile + "@@data@@", found)
    assert filled.count("</script>") == 1 and "alert(1)" in filled
    assert "<script>" not in page.table(found["runs"][0])
    report = page.with_timeline(f"<body>{page.REPORT_MARK}{{}}</script></body>", found)
    assert report.count("</script>") == 2 and report.index('id="timeline"') < report.index('id="report"')


def test_without_a_built_page_there_is_a_table(live, monkeypatch):
    monkeypatch.setattr(page, "built", lambda: None)
    text = get(live).read().decode()
    assert "<td>loss</td>" in text and 'http-equiv="refresh"' in text and "<script" not in text


def test_ctrl_c_ends_it_well(folder):
    command = [sys.executable, "-m", "finitude", "live", str(folder)]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=helpers.hears_signals,
        env=helpers.environment(None),
    )  # fmt: skip
    address = child.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:") and "?token=" in address
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 0 and "Traceback" not in err, err


def test_wrong_words_and_places(tmp_path, folder):
    for words, code in ((["--port", "x"], 2), (["a", "b"], 2), (["--bogus"], 2), (["nothing"], 3), ([], 3)):
        got = helpers.finitude(tmp_path, "live", *words)
        assert (got.code, got.out) == (code, ""), got.text()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        got = helpers.finitude(tmp_path, "live", str(folder), "--port", str(taken.getsockname()[1]))
        assert got.code == 4 and "cannot listen" in got.err, got.text()


def test_a_folder_is_left_as_it_was(folder):
    def seen():
        return sorted(str(p) for p in pathlib.Path(folder).rglob("*")), os.listdir(folder)

    before = seen()
    document.still(str(folder / "20260101-000000-a-1"))
    assert seen() == before


def test_report_page_gets_the_timeline(folder, tmp_path):
    run = folder / "20260101-000000-a-1"
    shutil.copy(pathlib.Path(__file__).parents[1] / "data" / "reports" / "clean.json", run / "report.json")
    with_store = helpers.finitude(tmp_path, "report", str(run), "--html", "a.html")
    (run / "store.sqlite").unlink()
    without = helpers.finitude(tmp_path, "report", str(run), "--html=b.html")
    assert (with_store.code, without.code) == (0, 0), with_store.text() + without.text()
    plain = (tmp_path / "b.html").read_text()
    assert 'id="timeline">' not in plain
    assert ('id="timeline">' in (tmp_path / "a.html").read_text()) == (page.REPORT_MARK in plain)
    wrong = helpers.finitude(tmp_path, "report", str(run), "--html", "c.html", "--bogus")
    assert wrong.code == 2 and "--bogus" in wrong.err
