"""Data parallel: each rank has its own rows and all of the model. With --nan one rank divides by zero at step 6."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def share(rows):
    return rows / rows.sum(1, keepdim=True)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--nan", action="store_true")
    wants_nan = options.parse_args().nan
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    for step in range(10):
        rows = torch.rand(16, 8)
        if wants_nan and step == 6 and rank == 1:
            rows[3] = 0.0
        loss = nn.functional.mse_loss(model(share(rows)), rows.amax(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()
    time.sleep(0.3)  # the threads of gloo may outlive the interpreter


main()
