"""torch.multiprocessing.spawn: two processes with a model each, no collective between them."""
import torch
import torch.multiprocessing as mp
from torch import nn


def work(rank, seed):
    torch.manual_seed(seed + rank)
    model = nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        x = torch.rand(3, 4)
        if rank == 1 and i == 3:
            x[1] = 0
        entropy = -(x * torch.log(x)).sum(1)  # birth
        loss = (model(x).sum(1) - entropy).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"rank {rank} step {i} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    context = mp.spawn(work, args=(44,), nprocs=1)
    processes = [mp.get_context("spawn").Process(target=work, args=(r, 44)) for r in (1,)]
    for p in processes:
        p.start()
        p.join()
