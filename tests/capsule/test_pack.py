"""A capsule as one file, through the command line. The format itself: src/capture/pack_capsule_posix_test.cpp."""

import io
import json
import os
import pathlib
import stat
import subprocess
import zipfile

import pytest
import torch  # noqa: F401  its libraries

import helpers
from finitude import _native

TAPE, TENSORS = b"tape " * 500, os.urandom(3000)


def about(**sizes):
    files = {name.replace("_", "."): {"bytes": size, "checksum": "0" * 16} for name, size in sizes.items()}
    return json.dumps({"kind": "finitude capsule", "schema": 1, "files": files}).encode()


GOOD = {
    "capsule.json": about(tape_bin=len(TAPE), tensors_safetensors=len(TENSORS)),
    "tape.bin": TAPE,
    "tensors.safetensors": TENSORS,
}


def folder_of(path, files):
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def archive_of(entries):
    """entries: (name or ZipInfo, bytes)."""
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return stored.getvalue()


def link():
    info = zipfile.ZipInfo("tape.bin")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


ITEMS = tuple(GOOD.items())
HOSTILE = {
    "a path upwards": (*ITEMS, ("../tape.bin", b"x")),
    "an absolute path": (*ITEMS, ("/tmp/tape.bin", b"x")),
    "a folder": (*ITEMS, ("sub/", b"")),
    "a link": ((*ITEMS[0],), (link(), b"/etc/passwd"), ITEMS[2]),
    "twice the same": (*ITEMS, ITEMS[1]),
    "a bomb": (ITEMS[0], ("tape.bin", b"\0" * (8 << 20)), ITEMS[2]),
    "a bomb that says so": (("capsule.json", about(tape_bin=8 << 20)), ("tape.bin", b"\0" * (8 << 20))),
    "a part": (ITEMS[0], ("tape.bin", TAPE[:-1]), ITEMS[2]),
    "a file that is not listed": (("capsule.json", about(tape_bin=len(TAPE))), *ITEMS[1:]),
    "no json": ITEMS[1:],
    "deep json": (("capsule.json", b"[" * 100_000), *ITEMS[1:]),
    "sizes that are no numbers": (("capsule.json", about(tape_bin="3", tensors_safetensors=True)), *ITEMS[1:]),
    "another json": (("capsule.json", b'{"files": {"tape.bin": {"bytes": 1}}}'), *ITEMS[1:]),
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_offline_words_refuse_a_foreign_archive(tmp_path, entries):
    (tmp_path / "a.zip").write_bytes(archive_of(entries))
    for word in ("dump", "report", "unpack"):
        got = helpers.finitude(tmp_path, word, "a.zip")
        assert got.code == 3 and got.err.startswith("finitude: a.zip"), got.err
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["a.zip"]


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(4):
    x = torch.rand(3, 4)
    loss = (model(x) / (0.0 if i == 2 else 1.0)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_packed_capsule_is_replayed_and_compared_directly(tmp_path):
    folder = helpers.run(tmp_path, SCRIPT).the_alarm()["capsule"]
    made = helpers.finitude(tmp_path, "pack", folder, "bad step.zip")
    assert (made.code, made.out) == (0, "bad step.zip\n"), made.text()
    with zipfile.ZipFile(tmp_path / "bad step.zip") as archive:  # read by others, too
        assert archive.testzip() is None
    again = helpers.finitude(tmp_path, "replay", "bad step.zip")
    assert again.code == 0 and again.out.startswith("identical"), again.text()
    assert helpers.finitude(tmp_path, "diff", folder, "bad step.zip").code == 0
    alone = subprocess.run(
        [pathlib.Path(_native.__file__).with_name("finitude-replay"), tmp_path / "bad step.zip"],
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0 and alone.stdout.startswith("identical"), alone.stderr
    made = helpers.finitude(tmp_path, "unpack", "bad step.zip")
    assert (made.code, made.out) == (0, "bad step\n") and (tmp_path / "bad step" / "tape.bin").is_file(), made.text()
    assert helpers.finitude(tmp_path, "replay", "bad step").code == 0
    # A packed capsule is packed again; nothing else is overwritten, and what cannot be written is reported by its own name.
    (tmp_path / "folder").mkdir()
    for name, code, message in (
        ("bad step.zip", 0, ""),
        ("train.py", 4, "cannot write train.py: it is there already"),
        ("folder", 4, "cannot write folder: it is a folder"),
        ("nowhere/a.zip", 4, "cannot write nowhere/a.zip: No such file"),
    ):
        made = helpers.finitude(tmp_path, "pack", folder, name)
        assert made.code == code and message in made.err and ".partial-" not in made.err, made.text()
    assert (tmp_path / "train.py").read_text().startswith("import torch") and not [*tmp_path.glob("*.partial-*")]
    made = helpers.finitude(tmp_path, "unpack", "bad step.zip", "nowhere/a")
    assert made.code == 4 and "cannot write nowhere/a: cannot be made: No such file" in made.err, made.text()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["pack"], 3),  # no run is there whose newest capsule it would take
        (["pack", "a", "b", "c"], 2),
        (["pack", "--fast", "a"], 2),
        (["pack", "not-there"], 3),
        (["unpack", "not-there.zip"], 3),
        (["unpack", "train.py"], 3),
        (["unpack", "a.zip", "--max-mb", "many"], 2),
        (["replay", "bad.zip"], 3),
    ],
)
def test_refusals_state_the_reason(tmp_path, words, code):
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "bad.zip").write_bytes(archive_of(HOSTILE["a path upwards"]))
    got = helpers.finitude(tmp_path, *words)
    assert got.code == code and got.err and "Traceback" not in got.err, got.text()
    assert len(words) == 1 or any(word in got.err for word in words[1:]), got.err


def test_report_shows_alarm_of_folder_and_packed_capsule(tmp_path):
    run = helpers.training(
        tmp_path,
        "opt.zero_grad(); loss = (model(batches[0]) - INF + INF).mean(); loss.backward(); opt.step()",
        "--on-alarm",
        "stop",
    )
    folder = run.the_alarm()["capsule"]
    packed = str(tmp_path / "a.zip")
    kept = json.loads((tmp_path / "report.json").read_text())["alarms"][0]
    assert helpers.finitude(tmp_path, "pack", folder, packed).code == 0
    for path in (folder, packed):
        shown = helpers.finitude(tmp_path, "report", path)
        assert shown.code == 0 and "train.py:" in shown.out, shown.err
        assert shown.out.splitlines()[0] in run.err.splitlines() and "step 0 was applied" in shown.out, run.err
        document = json.loads(helpers.finitude(tmp_path, "report", path, "--json").out)
        (alarm,) = document["alarms"]
        assert alarm["capsule"] == path
        for key in ("births", "cause", "sink", "step", "rerun"):
            assert alarm[key] == kept[key], key
        assert helpers.finitude(tmp_path, "report", path, "--html", "page.html").code == 0
    assert "was applied" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "nonsense", '{"kind": "finitude capsule"}', '{"kind": "finitude capsule", "alarm": {"step": []}}'],
)
def test_report_of_non_capsule_folder_is_input_error(tmp_path, text):
    shown = helpers.finitude(folder_of(tmp_path / "bad", {"capsule.json": text.encode()}).parent, "report", "bad")
    assert (shown.code, shown.out) == (3, "") and shown.err.startswith("finitude: ") and "Traceback" not in shown.err


def real_capsule(folder):
    script = (
        "import torch\nw = torch.nn.Parameter(torch.rand(6))\noptimizer = torch.optim.SGD([w], "
        "lr=0.1)\nfor i in range(3):\n"
        "    optimizer.zero_grad()\n    torch.log((torch.rand(4, 6) * w * (i != "
        "1)).sum(1)).mean().backward()\n    optimizer.step()\n"
    )
    return folder / helpers.run(folder, script).the_alarm()["capsule"]


@pytest.mark.parametrize("name", ["tape.bin", "start.safetensors", "statistics.bin"])
def test_what_is_damaged_is_neither_packed_nor_unpacked(tmp_path, name):
    folder = real_capsule(tmp_path)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = helpers.finitude(tmp_path, "pack", str(folder), "a.zip")
    assert (
        done.code == 3 and f"{name} is damaged: its checksum differs" in done.err and not (tmp_path / "a.zip").exists()
    ), done.text()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:  # as one made elsewhere
        for path in folder.iterdir():
            archive.write(path, path.name)
    done = helpers.finitude(tmp_path, "unpack", "a.zip", "back")
    assert done.code == 3 and f"{name} is damaged" in done.err and not (tmp_path / "back").exists(), done.text()
    done = helpers.finitude(tmp_path, "replay", str(folder))
    if name == "tape.bin":
        assert done.code == 3 and "identical" not in done.out, done.text()
    else:
        assert done.code == 3 and f"{name} is damaged: its checksum differs\n" in done.err, done.text()
        assert done.out.startswith("identical"), done.text()
        (folder / name).unlink()
        done = helpers.finitude(tmp_path, "replay", str(folder))
        assert done.code == 3 and name in done.err and done.err.count("\n") == 1, done.text()
