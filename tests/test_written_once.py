"""A second run leaves no second line: files that are open, files that are appended to, logging, loggers of their own."""

import sqlite3

import pytest

import helpers

pytestmark = pytest.mark.slow

TRAINING = """
import csv, gzip, io, json, logging, pathlib, sqlite3
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
    loss.backward()
    if not (SKIPS and i == BAD):
        opt.step()
    LOG
CLOSE
"""

SINKS = {
    "an open file": ("f = open('out.txt', 'w')", "f.write(f'{{i}}\\n')", "f.close()"),
    "an open file, flushed": ("f = open('out.txt', 'w', buffering=1)", "print(i, file=f, flush=True)", "f.close()"),
    "csv": ("f = open('out.txt', 'w', newline=''); w = csv.writer(f)", "w.writerow([i, i * 2])", "f.close()"),
    "appended to": ("", "with open('out.txt', 'a') as f: f.write(f'{{i}}\\n')", ""),
    "appended to by pathlib": ("", "with pathlib.Path('out.txt').open('a') as f: json.dump([i], f)", ""),
    "logging": ("logging.basicConfig(filename='out.txt', level=20, format='%(message)s')", "logging.info('step %d', i)", ""),
    "gzip": ("f = gzip.open('out.gz', 'wt')", "f.write(f'{{i}}\\n')",
             "f.close(); open('out.txt', 'w').write(str(len(gzip.open('out.gz', 'rt').read()) > 15))"),
}


def text_of(sink, skips=False):
    opened, log, close = SINKS[sink]
    return TRAINING.replace("OPEN", opened).replace("LOG", log).replace("CLOSE", close).format(skips=skips)


@pytest.mark.parametrize("sink", SINKS)
def test_a_file_has_the_lines_of_a_step_once(tmp_path, sink):
    got = helpers.run(tmp_path, text_of(sink), "--on-alarm", "skip")
    assert got.the_alarm()["rerun_by"] == "rewind" and got.code == 0, got.told()
    watched = (tmp_path / "out.txt").read_text()
    (tmp_path / "out.txt").unlink()
    helpers.write_script(tmp_path, text_of(sink, skips=True))
    helpers.plain(tmp_path, "train.py")
    assert watched == (tmp_path / "out.txt").read_text()


def test_what_cannot_be_held_is_named(tmp_path):
    """What stands below a buffer of bytes may be a stream that counts what was written: it is left alone, and told of."""
    text = TRAINING.replace("OPEN", "f = open('out.bin', 'wb')").replace("LOG", "f.write(bytes([i])); f.flush()").replace(
        "CLOSE", "f.close()").format(skips=False)
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert "written twice: out.bin" in got.the_alarm()["rerun_text"], got.told()
    assert (tmp_path / "out.bin").read_bytes() == bytes([0, 1, 2, 3, 3, 4, 5, 6, 7])


def test_a_second_process_writes_nothing_where_the_first_did(tmp_path):
    """At the first step there is nothing to go back to. Where the system lets us, the second process has files of its own,
    and does not see those that the first made."""
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
