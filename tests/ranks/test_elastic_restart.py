"""torchrun starts the ranks of a bad step once more: both starts are in the report, each rank's in a folder of its own."""

import json
import sys

import pytest
import torch  # noqa: F401  its libraries

from helpers import LIMIT, write_script
from process_support import cold, lost_its_port

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
PROGRAM = """
import os, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, start = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    opt.zero_grad()
    loss = model(torch.ones(2, 4)).mean()
    if start == 0 and step == 3 and rank == 1:
        loss = loss * torch.log(torch.zeros(1)).sum()
    loss.backward()
    opt.step()
os.write(1, f"ended {rank} {start}\\n".encode())
dist.destroy_process_group()
time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)
"""
TORCHRUN = sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", "--nproc-per-node", "2"


def test_both_starts_are_in_one_report(tmp_path):
    write_script(tmp_path, PROGRAM)
    for _ in range(2):
        got = cold(tmp_path, "--runs", "runs", *TORCHRUN, "train.py", limit=3 * LIMIT)
        if not lost_its_port(got.err):
            break
    assert got.code == 0 and sorted(got.out.split("\n")) == ["", "ended 0 1", "ended 1 1"], got.text()
    assert sorted((a["rank"], a["step"], a["rerun_by"]) for a in got.alarms) == [(0, 3, "rewind"), (1, 3, "rewind")]
    (folder,) = {path.parent.parent for path in tmp_path.glob("runs/*/rank-*/run.json") if path.parent.parent.exists()}
    jobs = {path.parent.name: json.loads(path.read_text())["job"] for path in folder.glob("rank-*/run.json")}
    assert sorted(job["elastic_restarts"] for job in jobs.values()) == ["0", "0", "1", "1"], jobs
    assert jobs["rank-0"]["elastic_restarts"] == "0" and got.watched["steps"] == 10, got.text()
