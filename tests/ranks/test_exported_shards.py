"""A model that is sharded over two dimensions of a mesh: its checkpoint of all capsules has the bits of the whole."""

import pytest
import torch
import torch.distributed.checkpoint as dcp

from finitude.capsules import step_manifest
from finitude.cli import export_dcp
from helpers import LIMIT, write_script
from process_support import warm_launcher, watched_ranks

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

PROGRAM = """
import time, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel, RowwiseParallel
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
opt = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
for step in range(5):
    torch.manual_seed(step * 10 + mesh["dp"].get_local_rank())
    x = torch.rand(4, 6)
    if step == 3:
        full = {n: p.full_tensor() for n, p in model.named_parameters()}
        m = {n: opt.state[p]["exp_avg"].full_tensor() for n, p in model.named_parameters()}
        if rank == 0: torch.save((full, m), "want.pt")
        if mesh["dp"].get_local_rank() == 1: x[0] = -1.0
    opt.zero_grad()
    model(torch.sqrt(x)).pow(2).mean().backward()
    opt.step()
dist.destroy_process_group()
time.sleep(0.3)  # the threads of gloo may outlive the interpreter
"""


def test_shards_of_two_dimensions_become_whole(tmp_path):
    write_script(tmp_path, PROGRAM)
    got = watched_ranks(tmp_path, "--on-alarm", "stop", *warm_launcher(tmp_path, 4), "train.py", limit=4 * LIMIT)
    (run,) = (tmp_path / "finitude-runs").iterdir()
    document = step_manifest.read(run / "step-000003.json")
    assert [one["first"] for one in document["ranks"]] == [False, False, True, True], got.text()
    groups = sorted((one["description"], one["ranks"], "gloo" in one["backend"]) for one in document["groups"])
    assert groups == [
        ("default_pg", [0, 1, 2, 3], True),
        ("mesh_dp", [0, 2], True),
        ("mesh_dp", [1, 3], True),
        ("mesh_tp", [0, 1], True),
        ("mesh_tp", [2, 3], True),
    ]
    code, notes = export_dcp.write(str(run), str(tmp_path / "dcp"))
    assert code == 0, notes
    parameters, moments = torch.load(tmp_path / "want.pt")
    into = {
        "model": {name: torch.zeros_like(t) for name, t in parameters.items()},
        "optimizer": {"state": {name: {"exp_avg": torch.zeros_like(t)} for name, t in moments.items()}},
    }
    dcp.load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for name in parameters:
        assert torch.equal(into["model"][name], parameters[name]), name
        assert torch.equal(into["optimizer"]["state"][name]["exp_avg"], moments[name]), name
