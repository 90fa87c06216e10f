"""Queues and connections that the program holds: a second run in place takes nothing out of them and puts nothing in
twice."""

import subprocess
import sys

import pytest

import helpers

MAIN = """
import multiprocessing, os, queue, socket

def main(channel):
    import torch
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for i in range(8):
        BEFORE
        x = torch.rand(4, 3) + 0.5
        if i == 5:
            x[2] = 0
        loss = torch.log(x.sum(1)).mean() * net(x).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    AFTER

if __name__ == "__main__":
"""
LOOP = (
    MAIN.replace("AFTER", "")
    + """
    MAKE
    main(channel)
"""
)
CHANNELS = {
    "threads": ("channel = queue.Queue()", "channel.get_nowait()", "channel.put(1)"),
    "joinable": ("channel = multiprocessing.get_context('spawn').JoinableQueue()", "channel.get()", "channel.put(1)"),
    "processes": ("channel = multiprocessing.get_context('spawn').Queue()", "channel.get()", "channel.put(1)"),
    "simple": ("channel = multiprocessing.get_context('spawn').SimpleQueue()", "channel.get()", "channel.put(1)"),
    "pipe": ("there, channel = multiprocessing.Pipe()", "channel.recv()", "channel.send(1)"),
}
FILL = {"pipe": "\n    [there.send(i) for i in range(8)]"}
WHY = "gives each thing once, and may have been used by this step"


def reported(tmp_path, channel, used, when):
    make, read, write = CHANNELS[channel]
    make += FILL.get(channel, "\n    [channel.put(i) for i in range(8)]")
    text = LOOP.replace("MAKE", make).replace("BEFORE", f"if {when}: {read if used == 'read' else write}")
    # Under skip the program goes on, and only a way in place is of use to it.
    run = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert run.code == 0, run.text()
    return run.the_alarm()


@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("used", ["read", "written"])
def test_channel_unused_by_step_does_not_prevent_rerun(tmp_path, channel, used):
    alarm = reported(tmp_path, channel, used, "i != 5")
    assert alarm["rerun_by"] == "rewind" and alarm["births"][0]["op"] == "aten::log", alarm


@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("used", ["read", "written"])
def test_what_this_step_used_does(tmp_path, channel, used):
    alarm = reported(tmp_path, channel, used, "i == 5")
    assert alarm["rerun_by"] != "rewind" and f"rewind: channel {WHY}" in alarm["rerun_text"], alarm


NOTES = """
import gc, queue
from finitude.session import install   # imports torch, whose libraries the engine links
from finitude.effects import channels

install.install()
class Ends(queue.Queue):                # refers to itself: the collector ends it
    def __init__(self):
        super().__init__()
        self.me, self.lasts = self, queue.Queue()
for i in range(100):
    q = Ends()
    q.put(1), q.lasts.put(2), q.get()
    del q
gc.collect()
assert len(channels._used) == 0, channels._used
queue.kept = queue.Queue()
queue.kept.put(1)                       # until the interpreter ends
"""


def test_freed_channels_are_forgotten_and_exit_is_silent():
    done = subprocess.run([sys.executable, "-c", NOTES], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


UNKNOWN = {
    "socket": ("channel = socket.socketpair()[0]", "pass"),
    "override": ("class Own(queue.Queue):\n        def get(self): return self.queue[0]\n    channel = Own()", "pass"),
}


@pytest.mark.parametrize("kind", ["socket", "override"])
def test_what_is_not_noted_counts_as_used(tmp_path, kind):
    make, use = UNKNOWN[kind]
    run = helpers.run(tmp_path, LOOP.replace("MAKE", make).replace("BEFORE", use), "--on-alarm", "skip")
    assert f"rewind: channel {WHY}" in run.the_alarm()["rerun_text"], run.text()


# As loky's, with a `put` of its own that goes through the same pipe.
OWN_PUT = """class Own(multiprocessing.queues.SimpleQueue):
        def put(self, thing):
            with self._wlock: self._writer.send_bytes(multiprocessing.reduction.ForkingPickler.dumps(thing))
    channel = Own(ctx=multiprocessing.get_context('spawn'))"""


@pytest.mark.parametrize("when, rerun_by", [("i != 5", "rewind"), ("i == 5", "restart")])
def test_queue_with_own_methods_is_known_by_pipe(tmp_path, when, rerun_by):
    text = "import multiprocessing.queues\n" + LOOP.replace("MAKE", OWN_PUT).replace(
        "BEFORE", f"if {when}: channel.put(1); channel.get()"
    )
    run = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert run.the_alarm()["rerun_by"] == rerun_by, run.text()
    assert (f"rewind: channel {WHY}" in run.the_alarm()["rerun_text"]) is (rerun_by == "restart")


CHILD = (
    MAIN.replace("BEFORE", "").replace("AFTER", 'channel.put("done")')
    + """
    context = multiprocessing.get_context("METHOD")
    q = context.Queue()
    p = context.Process(target=main, args=(q,))
    p.start()
    p.join()
    print("ended", p.exitcode)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_process_returning_its_result_by_queue_is_explained(tmp_path, method):
    run = helpers.run(tmp_path, CHILD.replace("METHOD", method))
    alarm = run.the_alarm()
    assert run.out == "ended 1\n" and alarm["rerun_by"] == "rewind", run.text()
    assert alarm["births"][0]["source"] == "loss = torch.log(x.sum(1)).mean() * net(x).mean()", alarm


def test_queues_are_the_programs_own_again_without_us():
    import queue

    from finitude.effects import channels
    from finitude.session import install

    before = queue.Queue.__dict__["get"]
    install.install()
    try:
        q = queue.Queue()
        assert not channels.is_used(q, 0)
        q.put(1)
        assert channels.is_used(q, 0) and q.get() == 1 and queue.Queue.__dict__["get"] is not before
    finally:
        install.uninstall()
    assert queue.Queue.__dict__["get"] is before and channels.is_used(q, 0)
