"""A second run leaves no second line: files that are open, files that are appended to, logging, loggers of their
own."""

import http.server
import sqlite3
import subprocess
import sys
import threading

import pytest

import helpers

pytestmark = pytest.mark.slow

TRAINING = """
import csv, gzip, io, json, logging, os, pathlib, sqlite3, threading
import torch
from torch import nn

torch.manual_seed(0)
BAD, SKIPS = 4, {skips}
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
OPEN
for i in range(8):
    opt.zero_grad()
    loss = (model(torch.ones(2, 3)) / (0.0 if i == BAD else 1.0)).sum()
    BEFORE
    loss.backward()
    if not (SKIPS and i == BAD):
        opt.step()
    AFTER
CLOSE
"""

# name: what stands before the loop, what writes in each step, what stands after it
SINKS = {
    "an open file": ("f = open('out.txt', 'w')", "f.write(f'{{i}}\\n')", "f.close()"),
    "an open file, flushed": ("f = open('out.txt', 'w', buffering=1)", "print(i, file=f, flush=True)", "f.close()"),
    "csv": ("f = open('out.txt', 'w', newline=''); w = csv.writer(f)", "w.writerow([i, i * 2])", "f.close()"),
    "appended to": ("", "with open('out.txt', 'a') as f: f.write(f'{{i}}\\n')", ""),
    "appended to by pathlib": ("", "with pathlib.Path('out.txt').open('a') as f: json.dump([i], f)", ""),
    "logging": (
        "logging.basicConfig(filename='out.txt', level=20, format='%(message)s')",
        "logging.info('step %d', i)",
        "",
    ),
    "gzip": (
        "f = gzip.open('out.gz', 'wt')",
        "f.write(f'{{i}}\\n')",
        "f.close(); open('out.txt', 'w').write(str(len(gzip.open('out.gz', 'rt').read()) > 15))",
    ),
    "an open file, reported": (
        "f = open('out.txt', 'w')",
        "f.write(f'{{i}}\\n'); f.flush(); print(f.tell())",
        "f.close()",
    ),
    "read back": (
        "json.dump(0, open('n.txt', 'w'))",
        "n = json.load(open('n.txt')) + 1; json.dump(n, open('n.txt', 'w')); print(n)",
        "",
    ),
    "a new file each": ("", "open(f'part-{{i}}.txt', 'x').write('part')", ""),
    "a file that stays open": (
        "",
        "if i % 2 == 0: f = open(f'part-{{i}}.txt', 'w'); f.write('head\\n')",
        "f.write('tail\\n'); f.close()",
    ),
    "unbuffered": ("f = open('out.bin', 'ab', buffering=0)", "f.write(bytes([i]))", ""),
    "one that is read too": (
        "f = open('out.txt', 'w+')",
        "f.write(f'{{i}}\\n'); f.seek(0); n = len(f.read()); f.seek(0, 2); print(n)",
        "f.close()",
    ),
    "added to and read": (
        "f = open('out.txt', 'a+')",
        "f.seek(0); n = len(f.readlines()); f.write(f'{{n}}\\n'); print(n)",
        "f.close()",
    ),
    "os.write": (
        "fd = os.open('out.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND)",
        "os.write(fd, b'%d\\n' % i)",
        "os.close(fd)",
    ),
    "os.open and os.write": (
        "",
        "fd = os.open('out.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND); os.write(fd, b'%d\\n' % i); os.close(fd)",
        "",
    ),
    "a folder each": ("", "os.makedirs(f'd{{i}}/x'); open(f'd{{i}}/x/f.txt', 'w').write(str(i))", ""),
    "put in place at once": ("", "open('tmp', 'w').write(str(i)); os.replace('tmp', 'out.txt')", ""),
    "named again": ("", "open('a.txt', 'w').write(str(i)); os.rename('a.txt', f'b{{i}}.txt')", ""),
    "the older ones taken away": (
        "",
        "open(f'k{{i}}.txt', 'w').write('x'); i > 1 and os.remove(f'k{{i - 2}}.txt')",
        "",
    ),
    "turned over": (
        "",
        "os.path.exists('out.txt') and os.replace('out.txt', f'old{{i}}.txt'); open('out.txt', 'a').write(str(i))",
        "",
    ),
    "pathlib": (
        "",
        "p = pathlib.Path(f'q{{i}}.txt'); p.write_text('x'); p.rename(f'r{{i}}.txt'); pathlib.Path(f'm{{i}}').mkdir()",
        "",
    ),
    "taken away until it is gone": (
        "",
        "open('l.txt', 'w').close()\n    while os.path.exists('l.txt'): os.remove('l.txt')\n"
        "    open('out.txt', 'a').write(str(i))",
        "",
    ),
    "a link to the newest": (
        "",
        "open(f'k{{i}}.txt', 'w').write(str(i)); os.path.lexists('new.txt') and os.remove('new.txt'); "
        "os.symlink(f'k{{i}}.txt', 'new.txt')",
        "",
    ),
    "shutil": (
        "import shutil; open('src.txt', 'w').write('1'); os.mkdir('all')",
        "shutil.copy('src.txt', f'c{{i}}.txt'); shutil.move(f'c{{i}}.txt', 'all'); shutil.copytree('all', f't{{i}}'); "
        "shutil.rmtree('t0', ignore_errors=True)",
        "",
    ),
    "a folder for a while": (
        "import tempfile",
        "with tempfile.TemporaryDirectory() as d: open(d + '/f', 'w').write('1'); "
        "n = os.path.getsize(d + '/f')\n    open('out.txt', 'a').write(str(n))",
        "",
    ),
    "a file for a while": (
        "import tempfile",
        "t = tempfile.NamedTemporaryFile('w'); t.write('abc'); t.flush(); n = os.path.getsize(t.name); "
        "t.close(); open('out.txt', 'a').write(str(n))",
        "",
    ),
    "a checkpoint": (
        "it = type('Counts', (), {{'n': 0}})()",
        "it.n += 1; torch.save(it.n, 'c.tmp'); os.replace('c.tmp', f'c{{it.n}}')",
        "print(sorted(n for n in os.listdir('.') if n[0] == 'c'), torch.load('c8')); "
        "open('out.txt', 'w').write('done')",
    ),
    "opened by os": (
        "f = os.fdopen(os.open('out.txt', os.O_WRONLY | os.O_CREAT), 'w')",
        "print(i, file=f)",
        "f.close()",
    ),
}


def text_of(opened, log, close, place="AFTER", skips=False):
    other = "BEFORE" if place == "AFTER" else "AFTER"
    text = TRAINING.replace("OPEN", opened).replace(place, log).replace(f"    {other}\n", "").replace("CLOSE", close)
    return text.format(skips=skips)


def left(folder):
    ours = {"finitude-runs", "report.json", "train.py", ".stdout", ".stderr"}
    return {
        str(f.relative_to(folder)): f.read_bytes() if f.suffix in (".txt", ".bin") else None
        for f in folder.rglob("*")
        if f.relative_to(folder).parts[0] not in ours
    }


# Before backward of the bad step, or after the step before it: both run again. The others' first way is thorough.
BEFORE_TOO = ("csv", "read back", "a file that stays open", "os.write", "the older ones taken away", "a checkpoint")


@pytest.mark.parametrize(
    ("sink", "place"),
    [(sink, "AFTER") for sink in SINKS]
    + [
        (sink, "BEFORE") if sink in BEFORE_TOO else pytest.param(sink, "BEFORE", marks=pytest.mark.thorough)
        for sink in SINKS
    ],
)
def test_file_contains_the_lines_of_a_step_once(tmp_path, sink, place):
    watched, plain = tmp_path / "watched", tmp_path / "plain"
    watched.mkdir()
    plain.mkdir()
    got = helpers.run(watched, text_of(*SINKS[sink], place), "--on-alarm", "skip")
    alarm = got.the_alarm()
    # A name that is bound under a condition might be read first, and its file is gone: that is left to another process.
    way = "restart" if (sink, place) == ("a file that stays open", "BEFORE") else "rewind"
    assert got.code == 0 and (alarm["rerun_by"], alarm["rerun_verified"]) == (way, True), got.text()
    assert "written twice" not in alarm["rerun_text"]
    helpers.write_script(plain, text_of(*SINKS[sink], place, skips=True))
    without = helpers.plain(plain, "train.py")
    assert without.code == 0 and left(plain) and left(watched) == left(plain) and got.out == without.out


NOT_HELD = {
    "below a buffer of bytes": ("f = open('out.bin', 'wb')", "f.write(bytes([i])); f.flush()"),
    "another thread of the program's own": (
        "threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start(); f = open('out.bin', 'w')",
        "f.write(chr(i)); f.flush()",
    ),
}


@pytest.mark.parametrize("case", NOT_HELD)
def test_what_cannot_be_held_is_named(tmp_path, case):
    """What is below a buffer of bytes may be a stream that counts what was written: it is left alone, and reported
    of."""
    got = helpers.run(tmp_path, text_of(*NOT_HELD[case], "f.close()"), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert alarm["rerun_by"] == "rewind" and "written twice: out.bin" in alarm["rerun_text"], got.text()
    assert (tmp_path / "out.bin").read_bytes() == bytes([0, 1, 2, 3, 3, 4, 5, 6, 7])


def test_open_databases_are_written_once(tmp_path):
    """Also in the copy of the process that a second run is tried in: of a write-ahead log the memory is shared, and a
    journal has a name."""
    got = helpers.run(
        tmp_path,
        text_of(
            "a, b = sqlite3.connect('wal.db', isolation_level=None), sqlite3.connect('journal.db'); "
            "a.execute('pragma journal_mode=wal'); "
            "a.execute('create table step (i int)'); b.execute('create table step (i int)'); "
            "b.execute('create table n (n int)'); "
            "b.execute('insert into n values (0)')",
            "a.execute('insert into step values (?)', (i,)); b.execute('insert into step values "
            "(?)', (i,)); i % 2 and b.commit(); "
            "b.execute('update n set n = n + 1')",
            "b.commit(); a.close(); b.close()",
        ),
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert got.code == 0 and alarm["rerun_by"] == "rewind", got.text()
    a, b = sqlite3.connect(tmp_path / "wal.db"), sqlite3.connect(tmp_path / "journal.db")
    for db in (a, b):
        assert [i for (i,) in db.execute("select i from step")] == list(range(8))
    assert b.execute("select n from n").fetchone() == (8,)


def test_database_of_unchanged_size_is_named_when_rewritten(tmp_path):
    """A deletion is made again, of what is there then."""
    got = helpers.run(
        tmp_path,
        text_of(
            "db = sqlite3.connect('out.db', isolation_level=None); db.execute('create table left as with recursive "
            "c(i) as (select 0 union all select i + 1 from c where i < 49) select i from c')",
            "db.execute('delete from left where i = (select min(i) from left)')",
            "db.close()",
        ),
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert alarm["rerun_by"] == "rewind" and "written twice: out.db" in alarm["rerun_text"], got.text()
    assert sqlite3.connect(tmp_path / "out.db").execute("select count(*) from left").fetchone() == (41,)


OUTSIDE = {
    "os.system": ("os.system(f'echo {{i}} >> out.txt')", "done twice: ran echo 4 >> out.txt"),
    "subprocess": (
        "import subprocess; subprocess.run(['sh', '-c', f'echo {{i}} >> out.txt'])",
        "done twice: ran sh -c 'echo 4 >> out.txt'",
    ),
    "a forked process": (
        "pid = os.fork()\n    if pid == 0: open('out.txt', 'a').write('4'); os._exit(0)\n    os.waitpid(pid, 0)",
        "done twice: forked a process",
    ),
    "a database opened for a while": (
        "db = sqlite3.connect('out.db'); db.execute('create table if not exists s (i int)'); "
        "db.execute('insert into s values (1)'); db.commit(); db.close()",
        "written twice: out.db",
    ),
    "opened in a way of its own": ("import tarfile; tarfile.open('out.tar', 'w').close()", "written twice: out.tar"),
    "torch's profiler": (
        "if i == 0: prof = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); prof.start()",
        "done twice: counted by the profiler",
    ),
    "a profiler": (
        "if i == 0: import cProfile; profile = cProfile.Profile(); profile.enable()",
        "done twice: counted by the profiler",
    ),
    "a post": (
        "import urllib.request; urllib.request.urlopen('URL', data=b'%d' % i).read()",
        "done twice: connected to 127.0.0.1:PORT",
    ),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_is_done_outside_is_named(tmp_path, case):
    """It cannot be held, and only what is done in the second run is reported."""
    written, words = OUTSIDE[case]
    got = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        port = str(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        written = written.replace("URL", f"http://127.0.0.1:{port}/")
        ran = helpers.run(tmp_path, text_of("", written, "", "BEFORE"), "--on-alarm", "skip")
        server.shutdown()
    alarm = ran.the_alarm()
    assert ran.code == 0 and (alarm["rerun_by"], alarm["rerun_verified"]) == ("rewind", True), ran.text()
    assert words.replace("PORT", port) in alarm["rerun_text"], alarm["rerun_text"]
    assert len(got) == (9 if case == "a post" else 0)


@pytest.mark.parametrize("place", ["BEFORE", "AFTER"])
def test_profiler_steps_are_counted_once(tmp_path, place):
    """A cycle that the second run would have ended writes one trace."""
    begin = (
        "from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler; "
        "prof = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2), "
        "on_trace_ready=tensorboard_trace_handler('traces')); prof.start()"
    )
    got = helpers.run(
        tmp_path, text_of(begin, "prof.step()", "prof.stop(); print(prof.step_num)", place), "--on-alarm", "skip"
    )
    alarm = got.the_alarm()
    assert got.code == 0 and (alarm["rerun_by"], alarm["rerun_verified"]) == ("rewind", True), got.text()
    assert got.out.splitlines()[-1] == "8", got.out
    assert len(list((tmp_path / "traces").iterdir())) == 2


def test_side_effects_of_repeated_closure_are_named(tmp_path):
    got = helpers.run(
        tmp_path,
        """
        import os, torch
        w = torch.nn.Parameter(torch.ones(2))
        opt = torch.optim.SGD([w], lr=0.1)
        for i in range(5):
            def closure():
                opt.zero_grad()
                os.mkdir(f"d{i}"); os.system("true")
                loss = (w / (0.0 if i == 3 else 1.0)).sum()
                loss.backward()
                return loss
            opt.step(closure)
        """,
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert got.code == 0 and (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (3, "closure", True), (
        got.text()
    )
    assert alarm["rerun_text"].endswith("done twice: ran true"), alarm["rerun_text"]


def test_internal_failure_in_rerun_restores_the_streams(tmp_path):
    """As every failure of ours: said once, and training goes on, with its output."""
    broken = "import finitude.base.compat; finitude.base.compat.run_eagerly = lambda: 1 / 0; f = open('out.txt', 'w')"
    got = helpers.run(tmp_path, text_of(broken, "print(i); f.write(f'{{i}}\\n')", "f.close()"), "--on-alarm", "skip")
    assert got.code == 0 and "internal failure at rerun/" in got.err and "ZeroDivisionError" in got.err, got.text()
    assert got.out.split() == (tmp_path / "out.txt").read_text().split() == list("01234567")


def test_restart_writes_nothing_where_first_process_wrote(tmp_path):
    """At the first step there is nothing to go back to. Where the system lets us, the second process has files of its
    own, and does not see those that the first made."""
    text = """
        import os, sqlite3, torch
        assert not os.path.exists("made"), "not from the start"
        os.mkdir("made")
        db = sqlite3.connect("steps.db")
        db.execute("create table step (i int)")
        with open("before.txt", "a") as f: f.write("began\\n")
        w = torch.nn.Parameter(torch.zeros(2))
        opt = torch.optim.SGD([w], lr=0.1)
        (w / w).sum().backward()
        db.execute("insert into step values (1)"); db.commit()
        open("made/checkpoint", "w").write("x")
        opt.step()
        """
    (tmp_path / "before.txt").write_text("earlier\n")
    got = helpers.run(tmp_path, text)
    alarm = got.the_alarm()
    if "written a second time" in alarm["rerun_text"] or alarm["rerun_by"] != "restart":
        pytest.skip("no user namespaces or overlayfs here")
    assert alarm["births"][0]["op"] == "aten::div"
    assert (tmp_path / "before.txt").read_text() == "earlier\nbegan\n"
    assert sqlite3.connect(tmp_path / "steps.db").execute("select count(*) from step").fetchone() == (1,)
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == ["checkpoint"]


# In a process of its own: what pytest has opened, others write to meanwhile.
WRITTEN_MEANWHILE = """
import os, subprocess
from finitude.effects import files
from finitude.effects.output_suppression import Quiet

files.note_own_database("store.sqlite")
log = os.dup(1)
rank = subprocess.Popen(["sh", "-c", "read go; echo a line of another rank"], stdin=subprocess.PIPE, stdout=log)
with open("store.sqlite", "wb") as own, open("store.sqlite-wal", "wb") as wal, open("other.bin", "wb") as other:
    held = files.HeldFiles()
    quiet = Quiet()
    for file in (own, wal, other):
        file.write(b"row")
        file.flush()
    rank.communicate(b"go")
    twice = held.end()
    quiet.end()
print([os.path.basename(name) for name in twice])
"""


def test_own_database_and_log_of_several_processes_are_no_side_effects(tmp_path):
    """The store is written by a thread of Finitude's own while a step runs again, and stdout by other ranks."""
    with open(tmp_path / "log", "wb") as log:
        subprocess.run([sys.executable, "-c", WRITTEN_MEANWHILE], cwd=tmp_path, stdout=log, check=True, timeout=60)
    assert (tmp_path / "log").read_text() == "a line of another rank\n['other.bin']\n"
