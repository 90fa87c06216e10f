"""Two ranks train; the batch of rank 1 is bad at one step. RANK_FAULT says what else goes wrong, and where.

The ranks are forked, and nobody ends the others where one fails: each has to come to its own end."""

import contextlib
import datetime
import multiprocessing
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from bench.rank_faults import points
from torch import nn

BAD, STEPS, WORLD = 3, 6, 2
_kept = []  # until the process is gone: torch may never come back from taking a process group down


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def sharded(strategy):
    model = MLP()
    if strategy in ("ddp", "no_sync", "join"):
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (WORLD,))
    if strategy == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for part in (model.up, model.down, model):
            fully_shard(part, mesh=mesh)
        return model
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def train(rank, case, store):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=points.GROUP_S),
    )
    strategy = case["strategy"]
    seed = 1000 * case["seed"]
    torch.manual_seed(seed)
    model = sharded(strategy)
    opt = torch.optim.AdamW(model.parameters(), lr=0.05)
    _kept.append((model, opt))
    points.set_up(rank)
    torch.manual_seed(seed + (7 if strategy == "tp" else 100 + rank))
    steps = STEPS - 2 * (strategy == "join" and rank == 0)
    last_common = BAD if strategy != "join" else steps - 1
    bad = BAD if strategy != "join" else STEPS - 1
    with model.join() if strategy == "join" else contextlib.nullcontext():
        for step in range(steps):
            x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
            is_bad = step == bad and (rank == 1 or strategy == "tp")  # there both have the same batch
            points.at_bad_step = step == bad
            opt.zero_grad()
            with model.no_sync() if strategy == "no_sync" else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x), y)
                if points.runs_again():
                    points.come("second run", rank)
                elif step == bad:
                    points.come("restart", rank)
                if is_bad:
                    loss = loss * torch.log(torch.zeros(1)).sum() * 0
                loss.backward()
            if step == last_common:
                points.come("detection", rank)
            opt.step()
    local = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
    text = torch.cat([p.flatten().double() for p in local]).numpy().tobytes().hex()
    sys.stdout.write(f"weights of rank {rank} {text}\n")  # at once: both ranks write here
    sys.stdout.flush()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


def without_restart():
    """The whole program is not run once more for the alarm: that takes longer than all else, and few cases are about it."""
    from finitude.rerun import restart_ranks

    restart_ranks.explain = lambda *args: False


def main():
    if points.CASE["phase"] != "restart":
        without_restart()
    store = os.path.abspath("store")
    with contextlib.suppress(OSError):
        os.unlink(store)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, points.CASE, store)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    codes = [process.exitcode for process in ranks]
    print("codes", *codes, flush=True)
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
