"""What a second process does to files is kept apart from what the first did: by the system, or where it overlays no
directories by the process's own functions. Then a program comes to its step again though it makes folders and locks
that are there by now."""

import json
import subprocess
import sys

import pytest

import helpers

pytestmark = pytest.mark.slow

# The batches are popped from a list, so that a second process has to explain the step.
KEEPS_FILES = """
import glob, itertools, json, os, pathlib, shutil, sqlite3, tempfile
import torch

torch.manual_seed(0)
queue = [torch.rand(4, 3) + 0.1 for _ in range(9)]
queue[5][1] = 0
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
os.mkdir("out")
open("old.txt", "a").write("!")
with open("log.csv", "w") as f: f.write("step,loss\\n")
base = sqlite3.connect("steps.db")
base.execute("create table step (i int)")
numbers, step = itertools.count(1), 0
while queue:
    os.close(os.open("out/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    folder = pathlib.Path("out", f"{next(numbers):03d}"); folder.mkdir(); (folder / "note.txt").write_text(str(step)); (folder / "done").touch()
    torch.save(model.state_dict(), f"out/{step}.tmp"); os.replace(f"out/{step}.tmp", f"out/{step}.pt")
    kept = sorted(glob.glob("out/*.pt"))
    assert [os.path.basename(k) for k in kept] == [f"{i}.pt" for i in range(max(0, step - 2), step + 1)], kept
    assert sorted(n for n in os.listdir("out") if n.isdigit()) == [f"{i:03d}" for i in range(1, step + 2)]
    if len(kept) > 2: os.remove(kept[0])
    assert torch.load(kept[-1]).keys() == model.state_dict().keys()
    number, path = tempfile.mkstemp(dir=".", prefix="new-")
    with os.fdopen(number, "w") as f: json.dump(step, f)
    shutil.move(path, "latest.json")
    assert json.load(open("latest.json")) == step
    x = queue.pop(0)
    loss = (model(x / x.norm(dim=1, keepdim=True)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with open("log.csv", "a") as f: f.write(f"{step},{loss.item():.3f}\\n")
    with base: base.execute("insert into step values (?)", (step,))
    os.remove("out/lock")
    step += 1
print(open("log.csv").read(), sorted(os.listdir(".")), sorted(os.listdir("out")), open("old.txt").read())
print(base.execute("select count(*), max(i) from step").fetchone(), open("latest.json").read())
"""


# A comma means something to overlayfs: such a folder is not overlaid anywhere.
@pytest.mark.parametrize("name", ["here", "here,too"])
def test_restart_neither_sees_nor_leaves_files(tmp_path, name):
    """Folders, locks, checkpoints in rotation, files replaced, a database: all as in a run without us, where the
    weights do not show it."""
    here, plain = tmp_path / name, tmp_path / "plain"
    for folder in (here, plain):
        folder.mkdir()
        (folder / "old.txt").write_text("of before")
        helpers.write_script(folder, KEEPS_FILES)
    (here / "about").mkdir()
    got = helpers.run(here, KEEPS_FILES, "--on-alarm", "skip", "--runs", "about")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun"], alarm["rerun_verified"]) == (
        5,
        "restart",
        "persistent",
        True,
    ), got.text()
    assert "written a second time" not in alarm["rerun_text"], alarm["rerun_text"]
    expected = [
        line.split(",")[0] if line[0].isdigit() else line for line in helpers.plain(plain, "train.py").out.splitlines()
    ]
    found = [
        line.split(",")[0] if line[0].isdigit() else line.replace("'about', ", "").replace("'report.json', ", "")
        for line in got.out.splitlines()
    ]
    assert got.code == 0 and found == expected and expected[-1] == "(9, 8) 8", got.text()


def test_temporary_files_may_be_below_the_script_folder(tmp_path):
    """What the second process found is read from there."""
    for name in ("here", "about"):
        (tmp_path / name).mkdir()
    helpers.write_script(tmp_path, KEEPS_FILES)
    got = helpers.finitude(
        tmp_path / "here",
        "run",
        "--report",
        "report.json",
        str(tmp_path / "train.py"),
        env={"TMPDIR": str(tmp_path / "about")},
        cold=True,
        python=helpers.warm_python(),
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (5, "restart", True), got.text()
    assert "written a second time" not in alarm["rerun_text"] and not list((tmp_path / "about").glob("finitude-*")), (
        alarm["rerun_text"]
    )


def test_only_files_written_twice_are_named(tmp_path):
    tmp_path = tmp_path / "here,too"
    tmp_path.mkdir()
    text = KEEPS_FILES.replace(
        '    os.close(os.open("out/lock"', '    os.system("echo x >> appended.txt")\n    os.close(os.open("out/lock"'
    )
    got = helpers.run(tmp_path, text)
    alarm = got.the_alarm()
    assert alarm["rerun_verified"] and alarm["rerun_by"] == "restart", got.text()
    assert len((tmp_path / "appended.txt").read_text().splitlines()) >= 12
    assert "written a second time, or changed meanwhile: appended.txt (" in alarm["rerun_text"], alarm["rerun_text"]


ALONE = """
import glob, json, os, pathlib, shutil, sys, threading
from finitude.effects import paths
from finitude.effects.restarted_paths import RestartedPaths

os.makedirs("before/in"); pathlib.Path("before/a.txt").write_text("a"); pathlib.Path("before/b.txt").write_text("b")
os.makedirs("first/in"); pathlib.Path("first/in/c.txt").write_text("c"); pathlib.Path("first/d.txt").write_text("d"); os.symlink("d.txt", "first/newest")
here = os.getcwd()
os.mkdir("scratch"); paths.of_copy = os.path.join(here, "scratch")
held = RestartedPaths([os.path.join(here, p) for p in ("first", "first/in", "first/in/c.txt", "first/d.txt", "first/newest")])
held.begin()
said = {}
def raises(kind, call):
    try: call()
    except OSError as e: return type(e) is kind
    return False
said["gone"] = [os.path.exists("first"), "first" in os.listdir(), [p.name for p in pathlib.Path().glob("f*")], raises(FileNotFoundError, lambda: os.listdir("first")),
    raises(FileNotFoundError, lambda: open("first/d.txt")), raises(FileNotFoundError, lambda: open("first/d.txt", "r+")), raises(FileNotFoundError, lambda: os.remove("first/d.txt"))]
os.makedirs("first/in")
said["made again"] = [os.listdir("first"), raises(FileExistsError, lambda: os.mkdir("first")), os.path.exists("first/d.txt")]
with open("first/d.txt", "x") as f: f.write("D")
os.symlink("d.txt", "first/newest")
said["written"] = [sorted(os.listdir("first")), open("first/d.txt").read(), os.path.getsize("first/d.txt"), raises(FileExistsError, lambda: open("first/d.txt", "x")),
    raises(FileExistsError, lambda: os.open("first/d.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)), open("first/newest").read()]
with open("before/a.txt", "a") as f: f.write("A")
number = os.open("before/b.txt", os.O_WRONLY | os.O_TRUNC); os.write(number, b"BB"); os.close(number)
said["of before"] = [open("before/a.txt").read(), pathlib.Path("before/b.txt").read_text()]
os.rename("before/a.txt", "before/b.txt")
said["renamed"] = [os.path.exists("before/a.txt"), open("before/b.txt").read(), os.listdir("before")]
os.mkdir("new"); pathlib.Path("new/e.txt").write_text("e"); os.rename("new/e.txt", "new/f.txt"); shutil.copy("new/f.txt", "before/g.txt")
said["new"] = [os.listdir("new"), sorted(os.listdir("before")), raises(FileNotFoundError, lambda: os.remove("new/e.txt"))]
shutil.rmtree("before")
said["removed"] = [os.path.exists("before"), raises(FileNotFoundError, lambda: os.scandir("before"))]
os.mkdir("before")
said["empty"] = [os.listdir("before"), os.path.exists("before/in")]
thread = threading.Thread(target=lambda: open("before/b.txt", "w").write("thread")); thread.start(); thread.join()
if (child := os.fork()) == 0:
    open("child.txt", "w").write("child"); os._exit(0)
os.waitpid(child, 0)
held.end()
paths.take_away_made(paths.of_copy)
said["after"] = {str(p): p.read_text() for p in sorted(pathlib.Path().rglob("*.txt"))}
said["left"] = sorted(os.listdir())
print(json.dumps(said))
"""


def test_redirected_file_functions_leave_real_files_unchanged(tmp_path):
    helpers.write_script(tmp_path, ALONE, "alone.py")
    done = subprocess.run(
        [sys.executable, "-c", "import torch, runpy; runpy.run_path('alone.py')"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=helpers.environment({}),
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["gone"] == [False, False, [], True, True, True, True]
    assert said["made again"] == [["in"], True, False]
    assert said["written"] == [["d.txt", "in", "newest"], "D", 1, True, True, "D"]
    assert said["of before"] == ["aA", "BB"]
    assert said["renamed"] == [False, "aA", ["b.txt", "in"]] or said["renamed"] == [False, "aA", ["in", "b.txt"]]
    assert said["new"] == [["f.txt"], ["b.txt", "g.txt", "in"], True]
    assert said["removed"] == [False, True] and said["empty"] == [[], False]
    assert said["after"] == {
        "before/a.txt": "a",
        "before/b.txt": "b",
        "first/d.txt": "d",
        "first/in/c.txt": "c",
        "child.txt": "child",
    }
    assert said["left"] == ["alone.py", "before", "child.txt", "first"]


def test_too_many_files_are_reported_by_their_folder(tmp_path, monkeypatch):
    from finitude.rerun import overlay_fs

    monkeypatch.setattr(overlay_fs, "_open_for_writing", lambda: ())  # the tests' own server has some open

    def said(held):
        (tmp_path / "scratch").mkdir()
        it = overlay_fs.Overlay(str(tmp_path / "scratch"), str(tmp_path), [], 0.0, [str(tmp_path / "scratch")])
        it.began()
        if held:
            (tmp_path / "scratch" / "held-1").mkdir()
        (tmp_path / f"new-{held}").write_text("x")
        words = it.ended()
        __import__("shutil").rmtree(tmp_path / "scratch")
        return words

    assert (
        said(False) == said(True).replace("True", "False") == "written a second time, or changed meanwhile: new-False"
    )
    monkeypatch.setattr(overlay_fs, "_MOST_FILES", 0)
    assert said(False) == f"files that it writes below {tmp_path} were written a second time"
    assert (
        said(True) == f"files that it writes by other means than Python's below {tmp_path} were written a second time"
    )
