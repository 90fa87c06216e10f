"""DistributedDataParallel on two gloo ranks."""
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(46)
    rows = torch.rand(32, 4) + 0.1
    rows[25] = 0
    data = TensorDataset(rows, rows.sum(1))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    model = DDP(nn.Linear(4, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for i, (x, y) in enumerate(loader):
        share = x / x.sum(1, keepdim=True)  # birth
        loss = (model(share).squeeze(1) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {i} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()
    time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)


if __name__ == "__main__":
    main()
