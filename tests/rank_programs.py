"""A training of two ranks with one fault, and what holds of each alarm that both explain."""

import json
import pathlib
import subprocess

import torch  # noqa: F401  its libraries

from finitude import _native

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

RANKS = """
import os, sys, time, torch
import torch.distributed as dist
from torch import nn
NAN = float("nan")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
opt = torch.optim.Adam(model.parameters(), lr=0.05)
torch.manual_seed(100 + rank)
def show(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n"); sys.stdout.flush()
for step in range(8):
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    opt.zero_grad()
    logits = model(x)
    LOSS
    loss.backward()
    opt.step()
same = torch.cat([p.detach().flatten() for p in model.parameters()])
both = [torch.empty_like(same) for _ in range(dist.get_world_size())]
dist.all_gather(both, same)
show("rank", rank, torch.equal(*both), bool(torch.isfinite(same).all()), f"{same.double().sum().item():.17g}")
dist.destroy_process_group()
time.sleep(0.3)  # gloo's thread lets go of the last tensors after the call, and an interpreter that ends by then aborts (pytorch#179291)
"""
FINE = "loss = nn.functional.cross_entropy(logits, y)"


def ranks(loss):
    return RANKS.replace("LOSS", loss.replace("\n", "\n    "))


def assert_explained_in_place(own, other):
    """All ranks ran the step again in lock-step: the one that made the value explains it, the other names that rank."""
    assert [(a["rerun_by"], a["rerun"], a["rerun_verified"]) for a in (own, other)] == [
        ("rewind", "persistent", True)
    ] * 2, [a["rerun_text"] for a in (own, other)]
    assert (own["rank"], own["births"][0]["source"][-10:]) == (1, "loss * NAN") and "on all ranks together" in own[
        "rerun_text"
    ]
    assert (other["cause"]["class"], other["births"][0]["phase"]) == ("other-rank", "communication")
    assert "came from rank 1" in other["cause"]["text"]


def assert_capsules_replay_alone(got, alarms=None):
    """Each rank left one beside its report; what the other rank gave is played as it was recorded."""
    for alarm in got.alarms if alarms is None else alarms:
        folder = got.folder / alarm["capsule"]
        assert folder.parent.name == f"rank-{alarm['rank']}"
        about = json.loads((folder / "capsule.json").read_text())
        assert (about["rank"], about["ranks"], about["replay"]) == (alarm["rank"], 2, "identical"), about["replay"]
        done = subprocess.run([PLAYER, folder], capture_output=True, text=True, timeout=120, env={"PATH": "/nowhere"})
        assert done.returncode == 0 and done.stdout.startswith("identical"), done.stdout + done.stderr
        assert "what other ranks gave is as it was recorded" in done.stdout and "c10d::allreduce_" in done.stdout
