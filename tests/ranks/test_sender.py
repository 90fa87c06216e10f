"""Where several ranks have a birth of their own in one step, a receiver names the one whose value it got."""

import pytest
import torch  # noqa: F401  its libraries

from helpers import write_script
from process_support import warm_launcher, watched_ranks
from sharded_programs import END

pytestmark = pytest.mark.slow

# Rank 0 gets the NaN of rank 2. That of rank 1 stays with it, or goes into an exchange that comes later.
PROGRAM = (
    """
import sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
pair = dist.new_group([0, 2])
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(2):
    opt.zero_grad()
    loss = model(torch.ones(3, 4)).square().mean()
    if step and rank == 1:
        loss = loss + (loss - loss).sqrt()
    if step and rank == 2:
        loss = loss + (loss * 0).sqrt()
    loss.backward()
    grad = model.weight.grad
    EXCHANGE
    opt.step()
"""
    + END
)
IN_GROUP = "if rank != 1: dist.all_reduce(grad, group=pair)"
IN_TURN = """ones = torch.ones_like(grad)
    dist.all_reduce(ones if rank == 1 else grad)
    dist.all_reduce(grad if rank == 1 else ones)"""


@pytest.mark.parametrize(
    "exchange", [IN_GROUP, pytest.param(IN_TURN, marks=pytest.mark.thorough)], ids=["group", "turn"]
)
def test_sender_is_named_among_ranks_with_births(tmp_path, exchange):
    text = PROGRAM.replace("EXCHANGE", exchange)
    write_script(tmp_path, text)
    line = 1 + next(i for i, one in enumerate(text.strip().splitlines()) if "loss * 0" in one)
    got = watched_ranks(tmp_path, "--on-alarm", "skip", "--capsules", "0", *warm_launcher(tmp_path, 3), "train.py")
    assert got.code == 0, got.text()
    assert [(a["rank"], a["step"], a["action"]) for a in got.alarms if a["rank"] == 0] == [
        (0, 1, "the step was skipped")
    ], got.text()
    text = next(a for a in got.alarms if a["rank"] == 0)["cause"]["text"]
    assert text.startswith("the value came from rank 2, where aten::") and text.endswith(f"train.py:{line}"), text
