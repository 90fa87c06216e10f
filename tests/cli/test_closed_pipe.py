"""`finitude WORD | head -1`: who reads has gone, and nothing is said of it; the word ends of SIGPIPE, as other tools
do."""

import os
import signal
import subprocess
import sys

import pytest

from helpers import environment, run, training

ALARM = "for x in batches[:2]: opt.zero_grad(); (loss_of(x) * NAN).backward(); opt.step()"


@pytest.fixture(scope="module")
def bad_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_run")
    got = training(folder, ALARM, "--on-alarm", "stop")
    return folder, got.the_alarm()["capsule"]


def unread(folder, *words):
    """The command line with a standard output whose reader has gone: (exit code, standard error)."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "finitude", *words],
            cwd=folder,
            env=environment(None),
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(write)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "word", [["report", "--json"], ["report"], ["replay", "--step-through"], ["dump"]], ids=" ".join
)
def test_a_word_whose_reader_has_gone_says_nothing(bad_run, word):
    folder, capsule = bad_run
    assert unread(folder, *word, capsule) == (-signal.SIGPIPE, "")


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["completion"], ["list", "finitude-runs"]], ids=" ".join
)
def test_nor_does_one_whose_words_are_few(bad_run, words):
    assert unread(bad_run[0], *words) == (-signal.SIGPIPE, "")


def test_program_being_run_sees_closed_pipe_itself(tmp_path):
    text = (
        "import os, sys\ntry: os.write(1, b'out')\nexcept BrokenPipeError: sys.stderr.write('seen\\n'); os._exit(5)\n"
    )
    (tmp_path / "train.py").write_text(text)
    code, err = unread(tmp_path, "run", "train.py")
    assert code == 5 and "seen" in err and "Traceback" not in err, err


def test_broken_pipe_of_the_program_is_not_silenced(tmp_path):
    # A closed pipe elsewhere is a failure like any other.
    got = run(tmp_path, "raise BrokenPipeError('of the program')\n")
    assert got.code == 1 and "BrokenPipeError: of the program" in got.err, got.text()
