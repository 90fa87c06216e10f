"""capsule.json has a checksum of itself: whatever bit of it changes, no command takes it for what was written."""

import json
import os
import pathlib
import random
import shutil
import subprocess

import pytest
import torch  # noqa: F401  its libraries

import helpers
import mutations
from finitude import _native
from finitude.base import checked_json
from finitude.cli import main
from finitude.report import capsule_alarm

PLAYER = os.path.join(os.path.dirname(_native.__file__), "finitude-replay")
DATA = pathlib.Path(__file__).parents[1] / "data" / "capsules"
SCRIPT = """
import torch
torch.manual_seed(1)
model = torch.nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(4):
    optimizer.zero_grad()
    h = model(torch.rand(8, 6)).abs() * (0.0 if i == 2 else 1.0)
    torch.log(h).mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    return folder / helpers.run(folder, SCRIPT).the_alarm()["capsule"]


def flipped(made, tmp_path, bit):
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(made, copy)
    data = bytearray((made / "capsule.json").read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    (copy / "capsule.json").write_bytes(data)
    return copy


def packed(folder, tmp_path):
    """The exit code of `pack`, which holds every file against its checksum."""
    return helpers.offline("pack", folder, tmp_path / "packed.zip")[0]


def test_every_reader_finds_a_flipped_bit(made, tmp_path):
    draw, data = random.Random(5), (made / "capsule.json").read_bytes()
    bits = [
        *range(8 * (len(data) - 40), 8 * len(data)),
        *draw.sample(range(8 * len(data)), 400 if mutations.SHARE == 1 else 100),
    ]
    bits += [8 * data.index(b"has_checksum") + i for i in range(96)]
    for bit in bits:
        copy = flipped(made, tmp_path, bit)
        changed = (copy / "capsule.json").read_bytes()
        assert packed(copy, tmp_path) == 3, bit
        try:
            document = json.loads(changed.decode())
        except ValueError:
            continue
        assert helpers.offline("report", copy)[:2] == (3, ""), bit
        assert checked_json.is_damaged(changed, document), bit


@pytest.mark.parametrize(
    "words", [("replay",), ("report",), ("pack",), ("dump",), ("diff", "SOUND"), ("replay", "--with", "train.py")]
)
def test_the_commands_say_so(made, tmp_path, words):
    data = (made / "capsule.json").read_bytes()
    copy = flipped(made, tmp_path, 8 * (data.index(b'\n "step": 2') + 10))  # 3
    assert json.loads((copy / "capsule.json").read_text())["step"] == 3
    words = [str(made) if word == "SOUND" else word for word in words]
    result = helpers.finitude(tmp_path, words[0], str(copy), *words[1:])
    assert result.code == 3 and "damaged: its checksum differs" in result.err, result.text()
    assert not list(tmp_path.glob("*.zip"))


def test_report_notices_damage_in_the_other_files(made, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    tape = bytearray((copy / "tape.bin").read_bytes())
    tape[len(tape) // 2] ^= 1
    (copy / "tape.bin").write_bytes(tape)
    result = helpers.finitude(tmp_path, "report", str(copy))
    assert result.code == 3 and "tape.bin is damaged" in result.err and "step 2" in result.out, result.text()
    assert helpers.finitude(tmp_path, "report", str(made)).code == 0


@pytest.mark.parametrize(
    "file", ["capsule.json", "tape.bin", "tensors.safetensors", "start.safetensors", "statistics.bin"]
)
def test_each_command_exits_3_on_any_flipped_bit(made, tmp_path, file, capfd):
    """Also where the command itself does not read that file."""
    draw, sound = random.Random(file), (made / file).read_bytes()
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    for bit in draw.sample(range(8 * len(sound)), 12):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        (copy / file).write_bytes(data)
        for words in (
            ["replay", str(copy)],
            ["report", str(copy)],
            ["dump", str(copy)],
            ["diff", str(copy), str(made)],
            ["pack", str(copy)],
        ):
            assert main.main(words) == 3, (words, bit, capfd.readouterr())
        capfd.readouterr()
    (copy / file).write_bytes(sound)
    for words in (["replay", str(copy)], ["report", str(copy)], ["dump", str(copy)], ["diff", str(copy), str(made)]):
        assert main.main(words) == 0, capfd.readouterr()


def test_the_player_ends_with_3_too(made, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    data = bytearray((copy / "statistics.bin").read_bytes())
    data[len(data) // 2] ^= 4
    (copy / "statistics.bin").write_bytes(data)
    done = subprocess.run([PLAYER, "--", copy], capture_output=True, text=True, timeout=60, env={"PATH": "/nowhere"})
    assert done.returncode == 3 and "statistics.bin is damaged" in done.stderr and "same bits" in done.stdout, done
    assert subprocess.run([PLAYER, made], capture_output=True, timeout=60).returncode == 0


def test_both_languages_write_the_same_sum(made, tmp_path):
    data = (made / "capsule.json").read_bytes()
    document = json.loads(data)
    assert (
        document["has_checksum"] is True
        and len(document["checksum"]) == 16
        and not checked_json.is_damaged(data, document)
    )
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    for extra in range(40):  # every length of the last block
        helpers.put_about(copy, {**document, "user": "u" * extra})
        assert packed(copy, tmp_path) == 0, extra


def test_damaged_capsule_gets_no_new_checksum(made, tmp_path):
    copy = flipped(made, tmp_path, 8 * ((made / "capsule.json").read_bytes().index(b'\n "step": 2') + 10))
    before = (copy / "capsule.json").read_bytes()
    capsule_alarm.complete({**json.loads(before)["alarm"], "capsule": str(copy)}, False)
    assert (copy / "capsule.json").read_bytes() == before


@pytest.mark.parametrize("name", ["schema_1", "schema_1_statistics"])
def test_old_capsule_without_checksum_is_readable(name, tmp_path):
    assert "checksum" not in json.loads((DATA / name / "capsule.json").read_text())
    assert packed(DATA / name, tmp_path) == 0
    assert helpers.finitude(tmp_path, "report", str(DATA / name)).code == 0
