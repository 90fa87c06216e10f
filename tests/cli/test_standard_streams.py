"""A word whose standard output takes no more, or which is interrupted, ends in words and leaves nothing behind."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from helpers import environment, finitude, training

ALARM = "for x in batches[:2]: opt.zero_grad(); (loss_of(x) * NAN).backward(); opt.step()"
FULL = "No space left on device"


@pytest.fixture(scope="module")
def bad_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_run")
    return folder, training(folder, ALARM, "--on-alarm", "stop").the_alarm()["capsule"]


def word(folder, *words, out="/dev/full", err=None, closed=()):
    """(exit code, standard error). closed: descriptors that are closed before it begins."""

    def close():
        for descriptor in closed:
            os.close(descriptor)

    with open(out, "w") as stdout, open(err or os.devnull, "w") as stderr:
        done = subprocess.run(
            [sys.executable, "-m", "finitude", *words],
            cwd=folder,
            env=environment(None),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr if err else subprocess.PIPE,
            text=True,
            timeout=60,
            preexec_fn=close,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [["report"], ["replay", "--step-through"]], ids=" ".join)
def test_full_disk_gives_a_one_line_error(bad_run, words):
    folder, capsule = bad_run
    assert word(folder, *words, capsule) == (4, f"finitude: cannot write to standard output: {FULL}\n")


@pytest.mark.parametrize(
    "words", [["--help"], ["list", "finitude-runs"], ["doctor", "--static", "train.py"]], ids=" ".join
)
def test_so_it_is_of_few_words(bad_run, words):
    assert word(bad_run[0], *words) == (4, f"finitude: cannot write to standard output: {FULL}\n")


def test_so_is_an_output_that_is_closed(bad_run):
    folder, capsule = bad_run
    assert word(folder, "report", capsule, closed=[1]) == (
        4,
        "finitude: cannot write to standard output: Bad file descriptor\n",
    )


@pytest.mark.parametrize(
    "words", [["doctor"], ["report"], ["report", "--for-agent"], ["replay"], ["rows"]], ids=" ".join
)
def test_a_locale_that_lacks_the_letters_of_a_path(bad_run, words):
    """They are written out; the exit code is that of another locale."""
    folder, capsule = bad_run
    here = folder / "\u00fcbung"
    if not here.exists():
        shutil.copytree(capsule, here)
    plain = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    got = [finitude(folder, *words, "\u00fcbung", env=one, cold=True) for one in (plain, {"LC_ALL": "C.UTF-8"})]
    assert got[0].code == got[1].code and "Traceback" not in got[0].err, got[0].text()
    assert len(got[0].out.splitlines()) == len(got[1].out.splitlines()), got[0].text()


@pytest.mark.parametrize("nowhere", [{"err": "/dev/full"}, {"closed": [2]}], ids=str)
def test_failed_output_does_not_change_the_exit_code(bad_run, nowhere):
    assert word(bad_run[0], "report", "nothing-there", out=os.devnull, **nowhere)[0] == 3
    assert word(bad_run[0], "report", bad_run[1], **nowhere)[0] == 4


def test_a_word_is_interrupted_while_the_engine_computes(tmp_path):
    large = (
        "model = nn.Linear(512, 2048); opt = torch.optim.SGD(model.parameters(), lr=0.1); batches = "
        "[torch.randn(512, 512)] * 2\n" + ALARM
    )
    capsule = training(tmp_path, large, "--on-alarm", "stop", "--experiments", "0").the_alarm()["capsule"]
    process = subprocess.Popen(
        [sys.executable, "-m", "finitude", "replay", "--times", "1024", capsule],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(None),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while "_native." not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():  # torch is imported by then
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    time.sleep(1)  # it is played for many seconds
    assert process.poll() is None, process.communicate()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT) and not err, (process.returncode, err)
    assert time.monotonic() - began < 15
