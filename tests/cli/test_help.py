"""Help of every word: within 80 columns; `finitude` alone teaches."""

import os
import pathlib
import sysconfig

import pytest

import helpers
from finitude.cli.table import WORDS

COLUMNS = 80
ASKED = [
    ["--help"],
    ["help"],
    *([word, "--help"] for word in WORDS),
    ["replay", "--with", "train.py", "--help"],
    ["replay", "capsule", "-h"],
]


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_each_fits_into_80_columns(tmp_path, words):
    got = helpers.finitude(tmp_path, *words)
    assert (got.code, got.err) == (0, "") and len(got.out.splitlines()) > 3, got.text()
    assert [line for line in got.out.splitlines() if len(line) > COLUMNS] == []
    assert all(line == line.rstrip() for line in got.out.splitlines() if "--" in line)


def test_help_of_a_word_is_the_same_either_way(tmp_path):
    for word in ("diff", "report", "run"):
        asked, named = helpers.finitude(tmp_path, word, "--help"), helpers.finitude(tmp_path, "help", word)
        assert named.out == asked.out and named.code == 0 and f"finitude {word}" in named.out
    assert helpers.finitude(tmp_path, "version").out == helpers.finitude(tmp_path, "--version").out


def test_of_the_program_without_python_too():
    for words in ([], ["report"], ["dump"], ["list"], ["diff"]):
        code, out, _ = helpers.offline(*words, "--help")
        assert code == 0 and max(map(len, out.splitlines())) <= COLUMNS, out


def test_alone_it_teaches(tmp_path):
    got = helpers.finitude(tmp_path)
    assert (got.code, got.err) == (2, "") and max(map(len, got.out.splitlines())) <= COLUMNS
    assert 5 < len(got.out.splitlines()) < 20
    taught = [line.split()[1] for line in got.out.splitlines() if line.startswith("  finitude ")]
    assert taught[0] == "run" and {"list", "report", "replay", "doctor"} <= set(taught) <= set(WORDS)
    assert "finitude --help" in got.out


@pytest.mark.parametrize(
    "words", [["--version"], *ASKED[:3], *([["completion", shell] for shell in ("bash", "zsh", "fish")])]
)
def test_it_takes_less_than_100_ms(tmp_path, words):
    """Of a core: how long it takes by the clock depends on what else the machine does."""
    program = str(pathlib.Path(sysconfig.get_path("scripts"), "finitude"))
    took = []
    for _ in range(3):
        to_nothing = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        pid = os.posix_spawn(program, [program, *words], {**os.environ}, file_actions=[to_nothing])
        _, status, used = os.wait4(pid, 0)
        assert status == 0
        took.append(used.ru_utime + used.ru_stime)
    assert min(took) < 0.1, took
