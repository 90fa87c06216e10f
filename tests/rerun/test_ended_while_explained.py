"""The program is ended while a bad step is run again to be explained: the alarm is reported all the same, as not run again,
and why."""

import signal

import pytest

from helpers import training

# A second process ends the first one; the loop's iterator cannot be set back, so that there is one.
APART = """
import os, re, signal, sys, time
first = int(os.environ.setdefault("FIRST_PROCESS", str(os.getpid())))
{before}
for match in re.finditer("[0-9]", "012345"):
    i = int(match.group())
    if i == 3 and os.getpid() != first:
        {ends}
        time.sleep(30)
    loss = loss_of(batches[i]) * (NAN if i == 3 else 1)
    opt.zero_grad(); loss.backward(); opt.step()
"""

# The second run in place ends the process: what lies in a pipe distinguishes it, and the process its rehearsal.
IN_PLACE = """
import fcntl, os, signal, sys, termios, time
me, (there, here) = os.getpid(), os.pipe()
for i, x in enumerate(batches):
    if i == 3 and os.getpid() == me:
        os.write(here, b"x")
        if fcntl.ioctl(there, termios.FIONREAD, bytes(4))[0] == 2: {ends}; time.sleep(5)
    loss = loss_of(x) * (NAN if i == 3 else 1)
    opt.zero_grad(); loss.backward(); opt.step()
"""


def the_unexplained(got, why):
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["weights"], alarm["births"]) == (3, "not-run", "clean", []), got.text()
    assert why in alarm["rerun_text"] and got.watched["handled_by_script"] == 0 and not got.advisories(), got.text()
    assert got.err.count("stopped before the optimizer") == 1


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_sigterm_while_a_second_process_explains(tmp_path, policy):
    got = training(tmp_path, APART.format(before="", ends="os.kill(first, signal.SIGTERM)"), "--on-alarm", policy)
    assert got.code == -signal.SIGTERM
    the_unexplained(got, "SIGTERM ended the program")


def test_a_handler_of_the_programs_own_that_exits(tmp_path):
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))"
    got = training(tmp_path, APART.format(before=before, ends="os.kill(first, signal.SIGTERM)"), "--on-alarm", "stop")
    assert got.code == 9
    the_unexplained(got, "SystemExit ended the program")


def test_own_signal_handler_may_exit_successfully(tmp_path):
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"
    got = training(tmp_path, APART.format(before=before, ends="os.kill(first, signal.SIGTERM)"), "--on-alarm", "stop")
    assert got.code == 0
    the_unexplained(got, "the program ended")


ENDS = {"SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM), "os._exit": ("os._exit(7)", 7)}


@pytest.mark.parametrize("name", ENDS)
def test_ended_within_a_second_run_in_place(tmp_path, name):
    ends, code = ENDS[name]
    got = training(tmp_path, IN_PLACE.format(ends=ends), "--on-alarm", "stop")
    assert got.code == code
    the_unexplained(got, f"{name} ended the program")


def test_killed_process_leaves_its_alarm_for_the_report(tmp_path):
    """It is watched as one that the program started; nothing of ours runs any more in it."""
    inner = APART.format(before="", ends="os.kill(first, signal.SIGKILL)")
    from helpers import TRAINING, write_script

    write_script(tmp_path, TRAINING + inner, "inner.py")
    got = training(
        tmp_path,
        "import subprocess, sys\nprint(subprocess.run([sys.executable, 'inner.py']).returncode)",
        "--on-alarm",
        "stop",
    )
    assert got.out == "-9\n"
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"]) == (3, "not-run") and "the program was ended" in alarm["rerun_text"], (
        got.text()
    )
