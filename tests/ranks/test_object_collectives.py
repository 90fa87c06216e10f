"""Values that came to a rank in objects: pickled, so that no operator shows where they came from."""

import pytest

from process_support import launched

LOOP = """
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(4):
    mine = [1.0 + rank]
    if i == 2 and rank == 1:
        mine[0] = float("nan")  # made
    CALL
    opt.zero_grad()
    (model(torch.randn(16, 6)).pow(2).mean() * scale.mean()).backward()
    opt.step()
"""
GATHERED = """got = [None, None]
    dist.all_gather_object(got, mine)  # received
    scale = torch.tensor([g[0] for g in got])"""
SENT = """dist.broadcast_object_list(mine, src=1)  # received
    scale = torch.tensor(mine)"""
# Rank 1 makes the value, rank 0 receives it.
GATHERED_AT_ONE = """got = [None, None] if rank == 0 else None
    dist.gather_object(mine, got, dst=0)  # received
    scale = torch.tensor([g[0] for g in got] if got else mine)"""
SCATTERED = """got = [None]
    dist.scatter_object_list(got, [mine, mine] if rank == 1 else None, src=1)  # received
    scale = torch.tensor(got[0])"""
POINT_TO_POINT = """got = [0.0]
    if rank == 1:
        dist.send_object_list(mine, dst=0)
    else:
        dist.recv_object_list(got, src=1)  # received
    scale = torch.tensor(got if rank == 0 else mine)"""
CALLS = {
    "all_gather": GATHERED,
    "broadcast": SENT,
    "gather": GATHERED_AT_ONE,
    "scatter": SCATTERED,
    "recv": POINT_TO_POINT,
}


def line_of(text, mark):
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_received_object_names_the_sender(tmp_path, call):
    text = LOOP.replace("CALL", call).lstrip("\n")
    got = launched(tmp_path, text)
    by_rank = {a["rank"]: a for a in got.alarms if a["step"] == 2}
    received, made = by_rank[0], by_rank[1]
    assert (received["births"][0]["phase"], received["births"][0]["line"]) == (
        "communication",
        line_of(text, "received"),
    )
    assert received["cause"]["class"] == "other-rank" and "rank 1" in received["cause"]["text"], got.text()
    assert (made["births"][0]["phase"], made["births"][0]["line"]) == ("data", line_of(text, "made")), got.text()
