"""--signals-together: a signal that one rank is sent reaches all ranks in the same step."""

import signal
import time
import types

import pytest

from finitude.base import config
from finitude.session import shared_signals
from helpers import run

pytestmark = pytest.mark.slow
BEGIN = """
import multiprocessing, os, signal, sys, time, torch
import torch.distributed as dist
from finitude.session import shared_signals
shared_signals.GRACE_S, shared_signals.MERGE_S, shared_signals._POLL_S = 0.5, 0.3, 0.05

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def main(train):
    store = os.path.abspath("store")
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, store)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    say("codes", *[process.exitcode for process in ranks])

def begin(rank, store):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

def step(model, opt):
    opt.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    opt.step()
"""
TOGETHER = (
    BEGIN
    + """
class Stop(Exception):
    pass

def train(rank, store):
    model, opt = begin(rank, store)
    at = heard = -1
    def on_usr1(number, frame):
        nonlocal heard
        heard = at
        say("rank", rank, "USR1 at", at)
        raise Stop
    signal.signal(signal.SIGUSR1, on_usr1)
    for at in range(2000):
        time.sleep(0.002)
        if at == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        if heard >= 0 and at == heard + 300 and rank == 0:
            child = multiprocessing.get_context("fork").Process(target=plain)
            child.start()
            child.join()
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            step(model, opt)
        except Stop:
            say("rank", rank, "stopped at", at)
    say("rank", rank, "was not ended")

def plain():
    say("child", "Deferred" in repr(signal.getsignal(signal.SIGTERM)), signal.set_wakeup_fd(-1))

main(train)
"""
)
ALONE = (
    BEGIN
    + """
def train(rank, store):
    model, opt = begin(rank, store)
    if rank == 0:
        signal.signal(signal.SIGTERM, lambda *_: None)
    step(model, opt)
    if rank == 0:
        time.sleep(4)  # takes no step
        os._exit(0)
    import threading
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    dist.barrier()

main(train)
"""
)


def test_all_ranks_hear_a_signal_in_one_step(tmp_path):
    """A handler that raises, a signal without one, and a process that a rank has forked meanwhile."""
    got = run(tmp_path, TOGETHER, "--signals-together", "20")
    assert f"codes -{signal.SIGTERM:d} -{signal.SIGTERM:d}" in got.out, got.text()
    lines = got.out.splitlines()
    for what in ("USR1", "stopped"):
        steps = [line.rpartition(" ")[2] for line in lines if what in line]
        assert len(steps) == 2 and len(set(steps)) == 1, got.text()
    assert "child False -1" in lines, got.text()
    assert got.watched["steps"] < 1000 and not got.report["failures"], got.text()
    ended = [line for line in got.report["watched"]["not_watched"] if "ended before" in line]
    assert not ended, got.text()  # both have written their reports


def test_rank_in_a_collective_is_ended_by_force(tmp_path):
    began = time.monotonic()
    got = run(tmp_path, ALONE, "--signals-together", "1")
    assert "codes 0 143" in got.out and time.monotonic() - began < 15, got.text()
    assert "SIGTERM did not reach the program" in got.err, got.text()


def test_end_of_a_job_is_read_with_care(monkeypatch):
    for text, expected in (("1700000000", 1.7e9), ("", None), ("soon", None), ("9" * 30, None)):
        monkeypatch.setenv("SLURM_JOB_END_TIME", text)
        assert shared_signals._end_of_job() == expected


def test_a_job_near_its_end_asks_for_usr1(monkeypatch):
    """Once, by rank 0, and only of a program that handles it."""
    said = []
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 30))
    monkeypatch.setattr(shared_signals.ranks, "world", lambda: (0, 2))
    settings = config.load({"signals-together": "5"}, environ={})
    report = types.SimpleNamespace(complain=said.append)
    for handlers in ({signal.SIGUSR1: print}, {}):
        signals = shared_signals.SharedSignals(settings, report, None, explains=False)
        signals._handlers.update(handlers)
        for _ in range(2):
            signals._hear_end_of_job()
        assert signals._heard == list(handlers)
    assert len(said) == 2 and "the time of the SLURM job ends in" in said[0]
