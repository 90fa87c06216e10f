"""Data-parallel training. One worker's share of a batch holds a sample that is all zeros.

    finitude run torchrun --nproc-per-node 2 other_rank.py
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(6):
    x = torch.rand(8, 4)
    if step == 3 and dist.get_rank() == 1:
        x[5] = 0
    direction = x / x.norm(dim=1, keepdim=True)
    loss = model(direction).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
