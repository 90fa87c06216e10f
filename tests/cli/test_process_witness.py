"""Which signal ended a process is known also where its launcher was quicker to wait for it."""

import os
import platform
import re
import signal
import subprocess
import sys

import pytest

from finitude.launch import witness

VERSION = tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups()))


@pytest.mark.skipif(VERSION < (6, 15), reason="Linux before 6.15 forgets a process that was waited for")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, 0])
def test_signal_is_known_after_the_wait(number):
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    descriptor = os.pidfd_open(process.pid)
    try:
        if number:
            process.send_signal(number)
        process.communicate(b"\n")
        assert witness._signal_of(process.pid, descriptor) == number
    finally:
        os.close(descriptor)
