"""Tensor parallel: the ranks hold columns of one layer and rows of the next, and have the same rows of data. With --nan
all of them take the root of a negative number at step 6."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(torch.sqrt(x))))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--nan", action="store_true")
    wants_nan = options.parse_args().nan
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(10):
        x, y = torch.rand(16, 8), torch.randint(0, 4, (16,))
        if wants_nan and step == 6:
            x[3, 2] = -1.0
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()
    time.sleep(0.3)  # the threads of gloo may outlive the interpreter


main()
