"""The diff of a fix is a patch that both tools apply, wherever the file lies and whatever its path looks like."""

import os
import shutil
import subprocess

import pytest

from finitude.report import patch
from helpers import training

pytestmark = pytest.mark.fast
LINES = "import torch\ndef f(p):\n    return torch.log(p)\n"
CHANGED = LINES.replace("log(p)", "log(p.clamp(min=1e-12))")
TOOLS = (["patch", "-p0"], ["patch", "-p1"], ["git", "apply"])


def found_with(file):
    edit = {"op": "aten::log", "arg": "self", "code": ".clamp(min=1e-12)", "line": 3, "file": file, "is_number": False}
    return {"fix": {"edit": edit}, "births": [{"phase": "forward"}]}


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("net.py", "net.py"),
        ("sub/net.py", "sub/net.py"),
        ("..sub/net.py", "..sub/net.py"),
        ("a folder/my net.py", "a folder/my net.py"),
        ("\u00fcn\u00ef/net.py", "\u00fcn\u00ef/net.py"),
        ("sub/net.py", "link/net.py"),
        ("../elsewhere/net.py", "../elsewhere/net.py"),
        ("../else where/net.py", "../else where/net.py"),
        ("../elsewhere/net.py", "link/net.py"),
    ],
)
def test_both_tools_apply_it(tmp_path, monkeypatch, file, path):
    started = tmp_path / "started"
    there = started / file
    started.mkdir()
    there.parent.mkdir(exist_ok=True)
    there.write_text(LINES, encoding="utf-8")
    if "link" in path:
        (started / "link").symlink_to(there.parent)
    monkeypatch.chdir(started)
    patch.note_folder()
    monkeypatch.chdir("/")  # the program works in another folder by now
    found = found_with(os.path.join(started, path))
    patch.add_diff(found)
    diff = found["fix"]["diff"]
    # From the folder that its first line names, else from where the program was started.
    first = diff.splitlines()[0]
    folder = first[len("in ") : -1] if first.startswith("in ") else str(started)
    assert first.startswith("in ") == file.startswith("../"), diff
    assert any(shutil.which(tool[0]) for tool in TOOLS)
    for tool in TOOLS:
        if shutil.which(tool[0]) is None:
            continue
        done = subprocess.run(tool, cwd=folder, input=diff, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and there.read_text(encoding="utf-8") == CHANGED, (tool, diff, done)
        there.write_text(LINES, encoding="utf-8")


def test_of_a_program_that_changes_its_folder(tmp_path):
    body = """
        import os
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        opt.zero_grad()
        torch.log(model(batches[0]) * 0).sum().backward()
        opt.step()
    """
    alarm = training(tmp_path, body, "--runs", str(tmp_path / "runs")).the_alarm()
    assert alarm["fix"]["diff"].startswith("--- ./train.py\n"), alarm["fix"]


@pytest.mark.parametrize("file", ["", "f.py", "<string>", "/no/such/file.py"])
def test_no_file_is_no_failure(file):
    found = found_with(file)
    patch.add_diff(found)
    assert "diff" not in found["fix"]
