"""The group on which ranks agree: who is in it, and what ends its wait."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from finitude.program import side_group, step_ranks


def _rank(rank, port, behaviour, results):
    import torch.distributed as dist

    torch.set_num_threads(1)
    if behaviour == "absent":
        side_group.WAIT_S = 2.0
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    group = side_group.SideGroup((0, 1))
    results.put((rank, "first", group.most(rank * 5, 3)))
    if behaviour == "killed" and rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    elif behaviour == "absent" and rank == 1:
        time.sleep(6)  # in a collective operation of the next step
    else:
        begun = time.monotonic()
        try:
            results.put((rank, "second", group.most(0, 4 + (rank if behaviour == "other step" else 0))))
        except side_group.CannotAgree as e:
            results.put((rank, str(e), time.monotonic() - begun))
    group.close()
    dist.destroy_process_group()
    time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)


def run(behaviour):
    """{(rank, what): value}"""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    both = [context.Process(target=_rank, args=(rank, port, behaviour, results)) for rank in (0, 1)]
    for one in both:
        one.start()
    for one in both:
        one.join(90)
    assert not any(one.is_alive() for one in both)
    found = []
    while not results.empty():
        found.append(results.get())
    return found


@pytest.mark.slow
def test_a_killed_rank_ends_the_wait():
    """The connection is closed: the other does not wait for the limit of the training, which is 30 minutes."""
    found = run("killed")
    assert (0, "first", 5) in found, found
    (why, seconds) = next((what, value) for rank, what, value in found if rank == 0 and what != "first")
    assert why not in ("second", "first") and seconds < 30, found


@pytest.mark.slow
def test_a_rank_that_leaves_the_step_out_is_not_waited_for_longer():
    found = run("absent")
    (seconds,) = (value for rank, what, value in found if rank == 0 and what not in ("first", "second"))
    assert 1 < seconds < 5, found


@pytest.mark.slow
def test_ranks_in_different_steps_do_not_agree():
    found = run("other step")
    assert [what for _, what, _ in found if what != "first"] == ["the ranks are not in the same step"] * 2, found


def test_plain_parameters_are_of_no_group():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not step_ranks.may_step_together(optimizer) and step_ranks.Stepping(optimizer).together(True) == ()
