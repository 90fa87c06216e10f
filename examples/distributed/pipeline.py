"""Pipeline parallel: rank 0 has the first half of the model, rank 1 the second half and the loss. With --nan the first
half divides by zero at step 6."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x):
        return torch.relu(self.layer(x / x.sum(1, keepdim=True)))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--nan", action="store_true")
    wants_nan = options.parse_args().nan
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    part = First() if rank == 0 else nn.Linear(16, 4)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2)
    for step in range(10):
        x, y, losses = torch.rand(16, 8), torch.randint(0, 4, (16,)), []
        if wants_nan and step == 6:
            x[3] = 0.0
        optimizer.zero_grad()
        schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
        optimizer.step()
    if rank == 1:
        print(f"loss {sum(losses).item() / len(losses):.4f}")
    dist.destroy_process_group()
    time.sleep(0.3)  # the threads of gloo may outlive the interpreter


main()
