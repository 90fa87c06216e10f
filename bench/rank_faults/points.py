"""In a rank of program.py: the fault of its case comes where its phase begins.

The functions of Finitude that begin a phase are wrapped once the rank is watched. A fault comes once."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

CASE = json.loads(os.environ.get("RANK_FAULT", "{}"))
# Seconds. The product's own are longer; what a fault lasts is longer than these, and shorter than GROUP_S.
VOTE_S, PARTING_S, STRAY_S, STALL_S, APPEAR_S, WAIT_S = 2.0, 1.0, 2.0, 5.0, 2.0, 3.0
FAULT_S, GROUP_S = 6.0, 12.0


MARK = "fault-has-come"  # a file of that name is there then
FOLDER = os.getcwd()


class Fault(RuntimeError):
    """What a fault of kind `raise` raises."""


_has_come = False


def come(phase, rank):
    """The phase begins."""
    global _has_come
    if _has_come or (CASE.get("phase"), CASE.get("rank")) != (phase, rank) or _is_restart() != (phase == "restart"):
        return
    _has_come = True
    os.close(os.open(os.path.join(FOLDER, MARK), os.O_CREAT | os.O_WRONLY))  # a second run prints nothing
    KINDS[CASE["kind"]]()


def _is_restart():
    from finitude.base import family

    home = family.found()
    return bool(home and home.orders)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _stop():
    subprocess.Popen(["sh", "-c", f"sleep {FAULT_S}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise():
    raise Fault("injected")


def _end():
    sys.exit(0)


def _vanish():
    os._exit(0)


def _full_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def _late():
    time.sleep(FAULT_S)


KINDS = {
    "kill": _kill,
    "stop": _stop,
    "raise": _raise,
    "end": _end,
    "vanish": _vanish,
    "disk": _full_disk,
    "late": _late,
}


def set_up(rank):
    """Of this rank, which is watched: short limits, and the wrapped functions."""
    from finitude.capsules.capsule import Capsules
    from finitude.program import side_group
    from finitude.report.document import Report
    from finitude.rerun import rank_vote

    rank_vote.LIMIT_S, rank_vote.PARTING_S, rank_vote.STRAY_S, rank_vote.STALL_S = VOTE_S, PARTING_S, STRAY_S, STALL_S
    side_group.APPEAR_S, side_group.WAIT_S = APPEAR_S, WAIT_S

    def wrap(owner, name, phase, is_there=lambda: True):
        original = getattr(owner, name)

        def wrapped(*args, **kwargs):
            if is_there():
                come(phase, rank)
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)

    if CASE.get("phase") == "restart":  # the whole program is run once more only where nothing else explains the step
        cast = rank_vote.Vote.cast
        rank_vote.Vote.cast = lambda vote, why, way="": cast(vote, why or "not in place", way)
    wrap(rank_vote.Vote, "cast", "vote")
    wrap(side_group.SideGroup, "most", "agreement", lambda: at_bad_step)
    wrap(Capsules, "write", "capture")
    wrap(Report, "add_alarm", "report")


at_bad_step = False


def runs_again():
    """Is a second run in place under way in this process?"""
    from finitude.session import native_callbacks

    return native_callbacks.session is not None and native_callbacks.runs_again()
