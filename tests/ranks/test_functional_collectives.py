"""What compilers and DTensor call instead of torch.distributed's own functions exchanges values as those do, and so do
those that give each rank the values of all, its own among them: the rank that made a bad value comes first, and the
other one names it."""

import json
import pathlib

import pytest

from helpers import LIMIT, write_script
from process_support import warm_launcher, watched_ranks

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, time, warnings, torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank, group = dist.get_rank(), dist.group.WORLD
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def kept(x):
    return x.detach()
def gathered(h):
    parts = [torch.zeros(4, 4) for _ in range(2)]
    dist.all_gather(parts, kept(h))
    return torch.stack(parts)
def gathered_into_one(h):
    whole = torch.zeros(8, 4)
    dist.all_gather_into_tensor(whole, kept(h))
    return whole
def scattered(h):
    part = torch.zeros(4, 4)
    dist.scatter(part, [kept(h), kept(h)] if rank == 1 else None, 1)
    return part
EXCHANGES = {
    2: lambda h: fc.all_reduce(kept(h), "sum", group),
    4: lambda h: fc.all_gather_tensor(kept(h), 0, group),
    6: lambda h: fc.reduce_scatter_tensor(kept(h), "sum", 0, group),
    8: lambda h: fc.all_to_all_single(kept(h), [2, 2], [2, 2], group),
    10: gathered,
    12: gathered_into_one,
    14: lambda h: DTensor.from_local(kept(h), mesh, [Partial()]).redistribute(mesh, [Replicate()]).to_local(),
    16: scattered,
}
for step in range(18):
    torch.manual_seed(step)
    h = model(torch.randn(4, 4))
    if step in EXCHANGES:
        if rank == 1: h = h / torch.zeros(4, 1)          # the division
        h = EXCHANGES[step](h) + 0.0
    loss = (model(torch.randn(4, 4)).pow(2).mean() * (1.0 + h.mean().detach())) if step in EXCHANGES else h.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
dist.destroy_process_group()
time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)
"""


def test_sender_comes_first_and_receiver_names_it(tmp_path):
    write_script(tmp_path, PROGRAM)
    got = watched_ranks(tmp_path, "--on-alarm", "skip", *warm_launcher(tmp_path), "train.py", limit=4 * LIMIT)
    assert got.code == 0, got.text()
    alarms = [(a["step"], a["rank"], a["cause"]["class"], a["births"][0]["phase"]) for a in got.alarms]
    steps = (2, 4, 6, 8, 10, 12, 14, 16)
    assert alarms == [
        one
        for step in steps
        for one in ((step, 1, "division-by-zero", "forward"), (step, 0, "other-rank", "communication"))
    ], got.text()
    kept = [json.loads(path.read_text()) for path in tmp_path.glob("finitude-runs/*/rank-*/step-*/capsule.json")]
    assert {about["rank"] for about in kept} == {0, 1} and {about["replay"] for about in kept} == {"identical"}, [
        (about["rank"], about["step"], about["replay"]) for about in kept
    ]
    assert len(kept) == len(alarms)
    for sender, receiver in zip(got.alarms[::2], got.alarms[1::2]):
        assert pathlib.Path(receiver["births"][0]["file"]).name == "train.py", receiver["births"]
        assert sender["births"][0]["op"] == "aten::div" and "the division" in sender["births"][0]["source"]
        # What the other rank answered is on the tape as it was: it says nothing against a change.
        assert "not finite:" not in sender["fix"]["outcome"], sender["fix"]
        line = sender["births"][0]["line"]
        assert f"came from rank 1, where aten::div made it at train.py:{line}" in receiver["cause"]["text"], receiver[
            "cause"
        ]
        assert receiver["fix"] is None or (receiver["fix"]["text"], receiver["fix"]["line"]) == (
            "see the birth on rank 1",
            line,
        )
