"""One rank of bench.agreement; in a module of its own, from which a spawned process imports it."""

import time


def rank_of(rank, port, exchanges, rounds, results):
    import torch
    import torch.distributed as dist

    from finitude.program import side_group

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    group = side_group.SideGroup((0, 1))
    for _ in range(rounds + 1):  # the first is warm-up
        begun = time.perf_counter()
        for step in range(exchanges):
            group.most(0, step)
        if rank == 0:
            results.put((time.perf_counter() - begun) / exchanges * 1e6)
    group.close()
    dist.destroy_process_group()
    time.sleep(0.3)  # the threads of gloo may outlive the interpreter
