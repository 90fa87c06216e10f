"""Parameters that ranks should have in common, and how the ranks were started; steps that each
of them verifies (--verify)."""

import pytest
import torch
import torch.distributed as dist

from finitude.base import config
from finitude.report.document import Report
from finitude.session import rank_checks
from process_support import launched

LOOP = """
import os
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    os.environ["OMP_WAIT_POLICY"] = "active"
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)))
more = rank == 1 and torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.01)  # another numbering
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(9):
    opt.zero_grad()
    model(torch.randn(16, 6)).pow(2).mean().backward()
    opt.step()
    if i == 4 and rank == 1 and CHANGE:
        with torch.no_grad():
            model.module[1].weight.view(torch.int32)[0, 0] ^= 1
"""


def advisories(got, kind):
    return [a for a in got.report["advisories"] if a["kind"] == kind]


@pytest.mark.slow
def test_one_bit_of_a_replica_is_found(tmp_path):
    got = launched(tmp_path, LOOP.replace("CHANGE", "True").lstrip("\n"), "--replicas-every", "3")
    (found,) = advisories(got, "replicas-differ")
    assert found["step"] == 6 and "1 of 4 replicated parameters of rank 1" in found["text"], got.text()
    assert "module.1.weight" in found["text"] and "at step 3 all had the same" in found["text"], found
    (start,) = advisories(got, "ranks-differ")
    assert "OMP_WAIT_POLICY active against not set" in start["text"], start
    assert got.code == 0 and not got.alarms


@pytest.mark.slow
def test_equal_replicas_have_no_advisory(tmp_path):
    got = launched(tmp_path, LOOP.replace("CHANGE", "False").replace("rank == 1:", "False:"), "--replicas-every", "3")
    assert not got.report["advisories"] and got.code == 0, got.text()


VERIFIED = """
import torch
import torch.distributed as dist
from torch import nn
from finitude import _native
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)))
opt = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for i in range(8):
    opt.zero_grad()
    loss = model(torch.randn(16, 6)).pow(2).mean()
    if i == 6 and rank == 1:
        _native.inject_flip(model.module[2].weight, 3, 20)
    loss.backward()
    if i == 4 and rank == 1:
        _native.inject_flip(model.module[2].weight.grad, 3, 20)
    opt.step()
counts = _native.verified_counts()
assert (counts["steps"], counts["optimizer_steps"], counts["not_played"], counts["unjudged"]) == (7, 7, 0, 0), counts
assert (counts["mismatches"] > 0) == (rank == 1), counts
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_each_rank_verifies_what_it_computes(tmp_path):
    got = launched(tmp_path, VERIFIED.lstrip("\n"), "--verify", "every=1")
    assert got.code == 0, got.text()
    found = [(a["step"], a["text"]) for a in advisories(got, "corrupted-step")]
    assert {step for step, _text in found} == {4, 6}, found
    assert found[0][1].startswith("the gradient of module.2.weight has other bits"), found
    assert any(text.startswith("the parameter module.2.weight") for step, text in found if step == 6), found


@pytest.fixture
def one_rank(monkeypatch, tmp_path):
    """Makes the checks of rank N of two, which share a store."""
    store = dist.HashStore()
    monkeypatch.setattr(rank_checks.compat, "group_store", lambda: store)
    monkeypatch.setattr(rank_checks.ranks, "world", lambda: (made.rank, 2))
    monkeypatch.setattr(rank_checks.ranks, "several", lambda: True)
    settings = config.load({"replicas-every": "1", "runs": str(tmp_path)}, environ={})

    def made():
        return rank_checks.RankChecks(settings, Report(settings, "train.py", []), explains=False)

    made.rank = 0
    return made


def texts(checks):
    return [a["text"] for a in checks._report.advisories]


def test_facts_are_compared_once_both_are_there(one_rank, monkeypatch):
    first, second = one_rank(), one_rank()
    one_rank.rank = 1
    second.compare_facts()  # rank 0 has written nothing yet: nothing is waited for
    one_rank.rank = 0
    first.write_facts()
    one_rank.rank = 1
    second._own_start["threads"] = 99
    second.compare_facts()
    second.compare_facts()
    (text,) = texts(second)
    assert f"threads 99 against {torch.get_num_threads()}" in text and not texts(first)


def test_a_clock_that_is_ahead_is_named(one_rank, monkeypatch):
    first, second = one_rank(), one_rank()
    one_rank.rank = 1
    monkeypatch.setattr(rank_checks.time, "time", lambda: 1e9 + 60)
    second.write_facts()
    one_rank.rank = 0
    monkeypatch.setattr(rank_checks.time, "time", lambda: 1e9)
    for _ in range(2):
        first.compare_facts()
    assert texts(first) == ["the clock of rank 1 is at least 60.0 s ahead of that of rank 0"]
    one_rank.rank = 1
    second.compare_facts()  # rank 0 is behind: for this rank there is nothing to be seen
    assert not texts(second)


def test_a_store_that_is_gone_is_no_failure(one_rank, monkeypatch):
    class Gone:
        def __getattr__(self, name):
            raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(rank_checks.compat, "group_store", Gone)
    checks = one_rank()
    checks.write_facts()
    checks.compare_facts()
    checks.at_end()
    assert not texts(checks)


def test_each_optimizer_has_rounds_of_its_own(one_rank, monkeypatch):
    """The replicas of one agree, those of the other do not: its text says nothing of the first."""
    held = {0: torch.zeros(3), 1: torch.ones(2)}
    monkeypatch.setattr(rank_checks.replicas, "of_optimizer", lambda optimizer: {0: [("w", held[optimizer])]})
    first, second = one_rank(), one_rank()

    def rounds(checks, rank):
        one_rank.rank = rank
        for ordinal in held:
            checks._digest(ordinal, ordinal, 4, rank_checks.compat.group_store())
        checks._compare_waiting()

    rounds(second, 1)  # rank 0 is late
    assert not texts(second) and len(second._waiting) == 2
    rounds(first, 0)
    held[1] = held[1] + 1
    rounds(second, 1)
    (text,) = texts(second)
    assert text.startswith("as step 4 begins, 1 of 1 replicated parameters of rank 1") and text.endswith(": w"), text
