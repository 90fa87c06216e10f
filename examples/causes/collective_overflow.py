"""Data-parallel training whose gradients are summed in float16.

    finitude run torchrun --nproc-per-node 2 collective_overflow.py
"""
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(6):
    x = torch.rand(8, 4)
    loss = (model(x) * (5000 if step == 3 else 1)).sum()
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        summed = p.grad.half()
        dist.all_reduce(summed)
        p.grad.copy_(summed.float() / dist.get_world_size())
    optimizer.step()
dist.destroy_process_group()
