"""A process of a run that a signal ended is reported as killed, by which signal, in the report of all."""

import pytest

import helpers

RANKS = """
import os, signal, sys, time, torch
import torch.distributed as dist
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(6):
    opt.zero_grad()
    model(torch.ones(2, 4)).mean().backward()
    opt.step()
    time.sleep(0.12)
    if i == 4 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGNAL)
        time.sleep(20)
dist.barrier()
"""
CHILDREN = """
import multiprocessing, os, signal, torch
def train(ends):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(4):
        opt.zero_grad()
        (model(torch.ones(2, 4)) * (float("nan") if i == ALARM_AT else 1.0)).mean().backward()
        opt.step()
    if ends:
        os.kill(os.getpid(), signal.SIGSEGV)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=train, args=(ends,)) for ends in (True, False)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print([child.exitcode for child in children])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGSEGV", marks=pytest.mark.thorough)])
def test_a_rank_of_torchrun(tmp_path, name):
    helpers.write_script(tmp_path, RANKS.replace("signal.SIGNAL", f"signal.{name}"))
    words = ["run", "--report", "report.json", "--runs", "runs", "torchrun", "--standalone", "--nproc-per-node", "2"]
    got = helpers.finitude(tmp_path, *words, "train.py", cold=True, limit=120)
    assert got.code == 1, got.text()
    (advisory,) = [a for a in got.advisories("killed") if a["rank"] == 1]
    assert f"rank 1 was killed by {name} after 5 steps" in advisory["text"], got.text()
    assert any(f"rank 1: killed by {name}" in text for text in got.watched["not_watched"]), got.text()
    assert "all finite" not in got.err, got.text()
    assert got.report["outcome"] == "killed" and got.report["reason"] == advisory["text"], got.text()


@pytest.mark.slow
def test_a_rank_that_its_launcher_ends_as_another_one_failed(tmp_path):
    """torchrun itself ends it, by SIGTERM: the line names both."""
    fails = """
    if i == 4 and dist.get_rank() == 0:
        raise ValueError("no such file")
    if i == 4:
        time.sleep(20)
"""
    helpers.write_script(tmp_path, RANKS.partition("    if i == 4")[0] + fails)
    words = ["run", "--report", "report.json", "--runs", "runs", "torchrun", "--standalone", "--nproc-per-node", "2"]
    got = helpers.finitude(tmp_path, *words, "train.py", cold=True, limit=120)
    reason = "rank 1 was killed by SIGTERM after 5 steps; rank 0 wrote its report after 5 steps"
    assert (got.code, got.report["outcome"], got.report["reason"]) == (1, "killed", reason), got.text()
    assert reason in got.err, got.text()


@pytest.mark.parametrize("alarm_at", [-1, 2])
def test_a_child_of_the_program(tmp_path, alarm_at):
    got = helpers.run(tmp_path, CHILDREN.replace("ALARM_AT", str(alarm_at)), "--on-alarm", "skip", "--runs", "runs")
    assert got.out == "[-11, 0]\n", got.text()
    (advisory,) = got.advisories("killed")
    assert "killed by SIGSEGV after 4 steps" in advisory["text"], got.text()
    assert len(got.alarms) == (2 if alarm_at >= 0 else 0) and "all finite" not in got.err, got.text()
