"""The group on which ranks agree: who is in it, and what ends its wait."""

import json
import socket
import subprocess

import pytest
import torch

import helpers
from finitude.program import step_ranks

RANK = """
import json, os, signal, sys, time
import torch.distributed as dist
from finitude.program import side_group

def put(*found):
    print(json.dumps(found), flush=True)

rank, port, behaviour = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if behaviour == "absent":
    side_group.WAIT_S = 2.0
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
group = side_group.SideGroup((0, 1))
put(rank, "first", group.most(rank * 5, 3))
if behaviour == "killed" and rank == 1:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
elif behaviour == "absent" and rank == 1:
    time.sleep(6)  # in a collective operation of the next step
else:
    begun = time.monotonic()
    try:
        put(rank, "second", group.most(0, 4 + (rank if behaviour == "other step" else 0)))
    except side_group.CannotAgree as e:
        put(rank, str(e), time.monotonic() - begun)
group.close()
dist.destroy_process_group()
time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)
"""


def run(folder, behaviour):
    """[(rank, what, value)]"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = *helpers.python_of_ranks(), str(helpers.write_script(folder, RANK))
    both = [
        subprocess.Popen([*words, str(rank), str(port), behaviour], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    lines = [line for one in both for line in one.communicate(timeout=90)[0].splitlines()]
    return [tuple(json.loads(line)) for line in lines]


@pytest.mark.slow
def test_a_killed_rank_ends_the_wait(tmp_path):
    """The connection is closed: the other does not wait for the limit of the training, which is 30 minutes."""
    found = run(tmp_path, "killed")
    assert (0, "first", 5) in found, found
    (why, seconds) = next((what, value) for rank, what, value in found if rank == 0 and what != "first")
    assert why not in ("second", "first") and seconds < 30, found


@pytest.mark.slow
def test_a_rank_that_leaves_the_step_out_is_not_waited_for_longer(tmp_path):
    found = run(tmp_path, "absent")
    (seconds,) = (value for rank, what, value in found if rank == 0 and what not in ("first", "second"))
    assert 1 < seconds < 5, found


@pytest.mark.slow
def test_ranks_in_different_steps_do_not_agree(tmp_path):
    found = run(tmp_path, "other step")
    assert [what for _, what, _ in found if what != "first"] == ["the ranks are not in the same step"] * 2, found


def test_plain_parameters_are_of_no_group():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not step_ranks.may_step_together(optimizer) and step_ranks.Stepping(optimizer).together(True) == ()
