"""Sharded parameters (FSDP2): each rank holds a part of each one. With --nan one rank takes a log of zero at step 6."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(torch.log(x))))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--nan", action="store_true")
    wants_nan = options.parse_args().nan
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Net()
    for part in (model.up, model.down, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    for step in range(10):
        x, y = torch.rand(16, 8) + 0.1, torch.randint(0, 4, (16,))
        if wants_nan and step == 6 and rank == 1:
            x[3, 2] = 0.0
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()
    time.sleep(0.3)  # the threads of gloo may outlive the interpreter


main()
