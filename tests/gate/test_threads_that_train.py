"""Several threads of a process that train, each a model of its own: none is touched for the sake of another's bad
step."""

import pytest

import helpers

TWO = """
import threading
import torch
torch.manual_seed(0)
nets = [torch.nn.Linear(3, 1) for _ in range(2)]
sums, first = {}, threading.Event()
sixth = threading.Event()
def train(k):
    numbers = torch.Generator().manual_seed(k)
    opt = torch.optim.Adam(nets[k].parameters(), lr=0.01)
    for i in range(200):
        x = torch.rand(8, 3, generator=numbers)
        if k == 1 and i == 117:
            BAD
        loss = x.sum(1).log().mul(nets[k](x).squeeze(1)).pow(2).mean()  # birth
        opt.zero_grad()
        loss.backward()
        if k == 1 and i == 0:
            first.wait()  # which of them is the first is no matter of luck
        if k == 1 and i == 5:
            sixth.wait()  # nor is it that they take turns
        opt.step()
        first.set()
        if k == 0 and i == 5:
            sixth.set()
    sums[k] = nets[k].weight.sum().item()
threads = [threading.Thread(target=train, args=(k,)) for k in range(2)]
for t in threads: t.start()
for t in threads: t.join()
print(sums[0], sums[1])
"""


@pytest.mark.parametrize("on_alarm", ["skip", pytest.param("stop", marks=pytest.mark.thorough)])
def test_bad_step_in_one_thread_leaves_other_unchanged(tmp_path, on_alarm):
    helpers.write_script(tmp_path, TWO.replace("BAD", "continue"), "left_out.py")
    got = helpers.run(tmp_path, TWO.replace("BAD", "x[3] = 0"), "--on-alarm", on_alarm)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["rerun_by"]) == (117, "loss", "restart"), got.text()
    assert alarm["rerun"] == "persistent" and alarm["rerun_verified"], alarm["rerun_text"]
    assert "another thread of this process trains as well" in alarm["rerun_text"]
    assert alarm["capsule"] and not got.watched["not_watched"], "an operator of the other thread is part of it"
    assert alarm["births"][0]["op"] == "aten::log" and "# birth" in alarm["births"][0]["source"], got.text()
    expected = helpers.plain(tmp_path, "left_out.py").out
    if on_alarm == "skip":
        assert got.out == expected and got.watched["steps"] == 400, got.text()


@pytest.mark.fast
def test_sequential_threads_are_rerun_in_place(tmp_path):
    text = TWO.replace(
        "for t in threads: t.start()\nfor t in threads: t.join()", "for t in threads: t.start(); t.join()"
    )
    got = helpers.run(tmp_path, text.replace("BAD", "x[3] = 0"), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert alarm["rerun_by"] == "rewind" and alarm["rerun_verified"] and alarm["births"][0]["op"] == "aten::log", (
        got.text()
    )


def test_restart_identifies_optimizers_by_their_threads(tmp_path):
    """What is made first in the second process was made second in the first one."""
    begin = "import os, threading\nswapped = 'BEGUN' in os.environ  # inherited\nos.environ['BEGUN'] = '1'\n"
    text = TWO.replace("import threading\n", begin).replace(
        "sums, first =", "other, sums, first = threading.Event(),", 1
    )
    text = text.replace("    opt = ", "    if (k == 0) == swapped: other.wait()\n    opt = ", 1)
    text = text.replace("    for i in range(200):\n", "    other.set()\n    for i in range(200):\n")
    got = helpers.run(tmp_path, text.replace("BAD", "x[3] = 0"), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun"], alarm["rerun_verified"]) == (
        117,
        "restart",
        "persistent",
        True,
    ), got.text()
    assert alarm["births"][0]["op"] == "aten::log", got.text()


@pytest.mark.fast
def test_step_reads_no_optimizer_of_other_threads(tmp_path):
    """torch frees a gradient with the GIL given back, so that a thread that reads those of another one may crash."""
    text = TWO.replace("import torch\n", "import torch\nfrom finitude.program import sinks\nseen = {}\n", 1)
    text = text.replace("sums[k] =", "seen[k] = [o is opt for o in sinks.watched_optimizers()]; sums[k] =")
    text = text.replace(
        "print(sums[0], sums[1])", "print(seen[0], seen[1], len(sinks.watched_optimizers()), flush=True)"
    )
    text = text.replace("def train(k):\n", "kept = []\ndef train(k):\n").replace(
        "lr=0.01)\n", "lr=0.01); kept.append(opt)\n"
    )
    got = helpers.run(tmp_path, text.replace("BAD", "pass"))
    assert got.out.split("\n")[0] == "[True] [True] 2", got.text()
