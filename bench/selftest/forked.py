"""Runs `finitude selftest`'s child processes as forks of one that has imported torch, which saves seconds for each."""

import os
import random
import signal
import sys
import time

from tools import forked


def import_once():
    """Imports only: no op, no thread."""
    import torch  # noqa: F401
    import torch._dynamo  # noqa: F401

    import finitude  # noqa: F401
    import finitude.selftest.__main__  # noqa: F401


def _become(arguments, folder):
    os.setsid()
    opened = os.open(os.path.join(folder, "output.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, to in ((nothing, 0), (opened, 1), (opened, 2)):
        os.dup2(descriptor, to)
    random.seed(0)
    sys.argv = ["finitude.selftest", *arguments]
    sys.orig_argv = [sys.executable, "-m", "finitude.selftest", *arguments]
    os.chdir(folder)

    def program():
        from finitude.selftest.__main__ import main

        main(list(arguments))

    return forked.end(forked.exit_code(program))


def run(arguments, folder, seconds):
    """As finitude.selftest.command.run_child."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os._exit(_become(arguments, folder))
    until, ended = time.monotonic() + seconds, False
    while not ended and time.monotonic() < until:
        time.sleep(0.02)
        ended = os.waitpid(pid, os.WNOHANG)[0] != 0
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    if not ended:
        os.waitpid(pid, 0)
