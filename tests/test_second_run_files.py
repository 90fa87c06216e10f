"""What a second run writes into files is not in them afterwards: under skip the run leaves the files of one that was not watched."""

import textwrap

import pytest
from helpers import run, write_script
from plain_runs import plain_runs

pytestmark = pytest.mark.slow

PROGRAM = """
import csv, json, os, threading
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [torch.ones(2, 4) for _ in range(6)]
batches[3][0] = 0
BEFORE
for step, x in enumerate(batches):
    optimizer.zero_grad()
    loss = model(x / x.norm(dim=1, keepdim=True)).mean()
    WINDOW
    loss.backward()
    optimizer.step()
AFTER
"""
# name: what stands before the loop, in the part that runs twice, and after it
WRITERS = {
    "csv_file": ("table = csv.writer(file := open('out.csv', 'w', newline=''))", "table.writerow([step, 'row'])", "file.close()"),
    "flushed": ("file = open('out.txt', 'w')", "file.write(f'{step}\\n'); file.flush(); print(file.tell())", "file.close()"),
    "appended": ("", "with open('out.txt', 'a') as f: f.write(f'{step}\\n')", ""),
    "read_back": ("json.dump(0, open('n.json', 'w'))", "n = json.load(open('n.json')) + 1; json.dump(n, open('n.json', 'w')); print(n)", ""),
    "new_file_each": ("", "open(f'part-{step}.txt', 'x').write('part')", ""),
    "stays_open": ("", """
    if step % 2:
        file = open(f'part-{step}.txt', 'w')
        file.write('head\\n')
    """, "file.write('tail\\n'); file.close()"),
    "unbuffered": ("file = open('out.bin', 'ab', buffering=0)", "file.write(bytes([step]))", ""),
    "opened_low": ("fd = os.open('out.txt', os.O_WRONLY | os.O_CREAT); file = os.fdopen(fd, 'w')", "print(step, file=file)", "file.close()"),
}


def text(name):
    before, window, after = WRITERS[name]
    return PROGRAM.replace("BEFORE", before).replace("    WINDOW", textwrap.indent(textwrap.dedent(window), "    ")).replace("AFTER", after)


def left(folder):
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.suffix in (".csv", ".txt", ".json", ".bin") and f.name != "report.json"}


@pytest.mark.parametrize("name", WRITERS)
def test_files_show_each_step_once(tmp_path, name):
    watched, plain = tmp_path / "watched", tmp_path / "plain"
    watched.mkdir()
    plain.mkdir()
    got = run(watched, text(name), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert got.code == 0 and (alarm["rerun_by"], alarm["rerun_verified"]) == ("rewind", True), alarm["rerun_text"]
    assert "written twice" not in alarm["rerun_text"]
    code, out = plain_runs(plain, {name: [write_script(plain, text(name), "train.py")]})[name]
    files = {k: v for k, v in left(plain).items() if k != "plain.json"}
    assert code == 0 and files and left(watched) == files
    assert got.out == out


@pytest.mark.parametrize("case, before", [("reads_too", "file = open('out.txt', 'w+')"),
                                          ("other_thread", "threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()\n"
                                                           "file = open('out.txt', 'w')")])
def test_a_file_that_cannot_be_held_is_named(tmp_path, case, before):
    program = PROGRAM.replace("BEFORE", before).replace("WINDOW", "file.write('row\\n'); file.flush()").replace("AFTER", "file.close()")
    alarm = run(tmp_path, program, "--on-alarm", "skip").the_alarm()
    assert alarm["rerun_by"] == "rewind" and "written twice" in alarm["rerun_text"] and "out.txt" in alarm["rerun_text"]
