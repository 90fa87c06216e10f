"""A training of two ranks that prints its median step: training.py STRATEGY STEPS."""

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

strategy, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(384, 384), nn.GELU())), nn.Linear(384, 16))
if strategy == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard

    for part in (*(one for one in model if isinstance(one, nn.Linear)), model):
        fully_shard(part)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randn(64, 384), torch.randint(0, 16, (64,))
took = []
for _ in range(steps):
    began = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    took.append(time.perf_counter() - began)
if dist.get_rank() == 0:
    print("median", statistics.median(took[len(took) // 5 :]), flush=True)
dist.destroy_process_group()
time.sleep(0.3)  # the threads of gloo may outlive the interpreter
