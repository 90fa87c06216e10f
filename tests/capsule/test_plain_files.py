"""Readers refuse what is no plain file at once: a pipe would be waited for, a device has no end."""

import io
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest

import helpers
from finitude import _native
from finitude.base import plain_file

CAPSULE = pathlib.Path(__file__).parents[1] / "data" / "capsules" / "schema_1_statistics"
PLAYER = os.path.join(os.path.dirname(_native.__file__), "finitude-replay")
LIMIT = 20
OF_ONE = {"list": ("0",), "doctor": ("1", "3")}  # it shows the others; it looks at what else of a capsule is there


def odd(folder, kind):
    path = folder / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a pipe":
        os.mkfifo(folder / "other")
        path.symlink_to("other")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        one = socket.socket(socket.AF_UNIX)
        one.bind(os.path.relpath(path))
    else:
        path.mkdir()
    return path


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "device", "socket", "folder"])
def test_opening_one_does_not_wait(place, kind):
    with pytest.raises(OSError):
        plain_file.opened(odd(place, kind))


def test_a_link_to_a_plain_file_is_one(place):
    (place / "a").write_bytes(b"x")
    (place / "b").symlink_to("a")
    with plain_file.opened(place / "b") as f:
        assert f.read() == b"x"


class Counting(io.BytesIO):
    asked = 0

    def read(self, count=-1):
        self.asked = max(self.asked, count)
        return super().read(count)


@pytest.mark.parametrize("size", [0, 3, plain_file.PART, 2 * plain_file.PART + 5])
def test_short_file_takes_no_memory_of_the_longest(size):
    """A read of so many bytes takes memory for them first: a limit of memory would end it."""
    for most in (1 << 50, 4, 0):
        file = Counting(b"x" * size)
        assert len(plain_file.first(file, most)) == min(size, most) and file.asked <= plain_file.PART


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_every_word_refuses_it(place, kind):
    """Named itself, as the report of a run, as a part of a capsule."""
    path = odd(place, kind)
    run = place / "runs" / "one"
    run.mkdir(parents=True)
    odd(run, kind).rename(run / "report.json")
    capsules = []
    for name in ("capsule.json", "tape.bin", "statistics.bin"):
        capsules.append(place / f"without-{name}")
        shutil.copytree(CAPSULE, capsules[-1])
        (capsules[-1] / name).unlink()
        os.mkfifo(capsules[-1] / name)
    calls = [[word, at] for word in ("report", "dump", "replay", "pack", "unpack", "doctor") for at in (path, run)]
    calls += [["diff", path, path], ["list", "runs"]]
    calls += [[word, at] for at in capsules for word in ("report", "replay", "pack", "dump", "doctor")]
    text = (
        "import sys\nfrom finitude.cli import main\nfor words in [w.split('|') for w in sys.argv[1:]]:\n"
        "    print('\\ncode of', words[0], main.main(words), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, *("|".join(map(str, words)) for words in calls)],
        text=True,
        capture_output=True,
        timeout=LIMIT * 3,
        cwd=place,
        env=helpers.environment(None),
    )
    codes = [line.split()[2:] for line in done.stdout.splitlines() if line.startswith("code of ")]
    assert len(codes) == len(calls), done.stdout + done.stderr
    wrong = [(words, code) for words, (_, code) in zip(calls, codes) if code not in OF_ONE.get(words[0], ("3",))]
    assert not wrong, done.stderr


def test_the_player_refuses_it(place):
    done = subprocess.run([PLAYER, odd(place, "pipe")], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 3 and "no plain file" in done.stderr
