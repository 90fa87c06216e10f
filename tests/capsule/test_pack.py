"""A capsule as one file: what comes back is what was put in, and what is no packed capsule leaves nothing behind."""

import io
import json
import os
import pathlib
import random
import stat
import subprocess
import zipfile

import pytest
import torch  # noqa: F401  its libraries

import helpers
from finitude import _native
from finitude.capsules import pack

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


def test_what_comes_back_is_what_was_put_in(tmp_path):
    folder = folder_of(tmp_path / "step-1 \u00fc", GOOD)
    (folder / "notes of mine.txt").write_text("not part of it")
    packed = tmp_path / "a.zip"
    pack.pack(str(folder), str(packed))
    assert pack.is_packed(packed)
    pack.unpack(str(packed), str(tmp_path / "back"))
    assert {p.name: p.read_bytes() for p in (tmp_path / "back").iterdir()} == GOOD
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["step-1 \u00fc", "a.zip", "back"])


@pytest.mark.parametrize(
    "change", ["no tape", "another size", "a link", "no json", "json of something else", "a file too many"]
)
def test_folder_that_is_no_capsule_is_not_packed(tmp_path, change):
    folder = folder_of(tmp_path / "step-1", GOOD)
    if change == "no tape":
        (folder / "tape.bin").unlink()
    elif change == "another size":
        (folder / "tape.bin").write_bytes(TAPE + b"x")
    elif change == "a link":
        (folder / "tape.bin").unlink()
        (tmp_path / "elsewhere").write_bytes(TAPE)
        (folder / "tape.bin").symlink_to(tmp_path / "elsewhere")
    elif change == "no json":
        (folder / "capsule.json").unlink()
    elif change == "json of something else":
        (folder / "capsule.json").write_text('{"kind": "finitude capsule", "files": []}')
    else:
        (folder / "capsule.json").write_bytes(about(tape_bin=len(TAPE), **{"../x": 1}))
    with pytest.raises(pack.Refused):
        pack.pack(str(folder), str(tmp_path / "a.zip"))
    assert not [p for p in tmp_path.iterdir() if "a.zip" in p.name]


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
def test_foreign_archive_is_refused_and_leaves_no_files(tmp_path, entries):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.zip").write_bytes(archive_of(entries))
    with pytest.raises(pack.Refused):
        pack.unpack(str(tmp_path / "in" / "a.zip"), str(tmp_path / "in" / "out"), most=1 << 20)
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "a.zip"]


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_offline_words_refuse_a_foreign_archive(tmp_path, entries):
    (tmp_path / "a.zip").write_bytes(archive_of(entries))
    for word in ("dump", "report"):
        got = helpers.finitude(tmp_path, word, "a.zip")
        assert got.code == 3 and got.err.startswith("finitude: a.zip"), got.err
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["a.zip"]


def damaged(good, draw):
    data = bytearray(good)
    for _ in range(draw.choice((1, 1, 3))):
        if not data or draw.random() < 0.1:
            del data[draw.randrange(len(data) + 1) :]
        else:
            data[draw.randrange(len(data))] = draw.randrange(256)
    return data


def test_damaged_archive_is_refused_or_unpacked_intact(tmp_path):
    """Any byte may have any value: nothing else is raised, nothing stays, and nothing false comes out unnoticed by
    zip's sums."""
    draw, good, wrong = random.Random(5), archive_of(ITEMS), 0
    for _ in range(500):
        (tmp_path / "a.zip").write_bytes(damaged(good, draw))
        try:
            pack.unpack(str(tmp_path / "a.zip"), str(tmp_path / "out"))
        except pack.Refused:
            wrong += 1
        else:
            assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == GOOD
            for path in (tmp_path / "out").iterdir():
                path.unlink()
            (tmp_path / "out").rmdir()
        assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]
    assert wrong > 300


def test_twenty_thousand_damaged_archives():
    """The same without a folder, of a small one: most of its bytes are those of the format."""
    small = {
        "capsule.json": about(tape_bin=20, tensors_safetensors=0),
        "tape.bin": b"tape " * 4,
        "tensors.safetensors": b"",
    }
    draw, good, wrong = random.Random(6), archive_of(small.items()), 0
    for _ in range(20_000):
        came = {}
        try:
            for name, data in pack.contents(io.BytesIO(damaged(good, draw)), most=1 << 20):
                came[name] = came.get(name, b"") + data
        except pack.Refused:
            wrong += 1
        else:
            assert came == small
    assert 14_000 < wrong < 20_000, wrong


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "a.zip").write_bytes(archive_of(ITEMS))
    (tmp_path / "out").mkdir()
    with pytest.raises(pack.Refused, match="is there already"):
        pack.unpack(str(tmp_path / "a.zip"), str(tmp_path / "out"))


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
    assert made.code == 4 and "cannot write nowhere/a: No such file" in made.err, made.text()


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
    pack.pack(folder, packed)
    kept = json.loads((tmp_path / "report.json").read_text())["alarms"][0]
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
    pack.pack(str(folder), str(tmp_path / "a.zip"))  # as one made elsewhere
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
