"""Programs of two ranks whose model lies on both of them: how it is made, and what begins each program."""

BEGIN = """
import os, signal, sys, time, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, OUT)
    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
MAKE
opt = torch.optim.AdamW(model.parameters(), lr=0.05)
torch.manual_seed(SEED)
"""
END = """
dist.destroy_process_group()
time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)
"""
MESH = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
"""
FSDP2 = (
    MESH
    + """
from torch.distributed.fsdp import fully_shard
model = MLP()
for part in (model.up, model.down, model):
    fully_shard(part, mesh=mesh)
"""
)
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(MLP(), device_id=torch.device("cpu"))
"""
TENSOR_PARALLEL = (
    MESH
    + """
from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel, RowwiseParallel
model = parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
"""
)
HSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = MLP()
fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))
"""
FSDP1_PARAMETERS = """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(MLP(), device_id=torch.device("cpu"), use_orig_params=True)
"""
SEQUENCE_PARALLEL = (
    MESH
    + """
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)
    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x)))).mean(1)
model = parallelize_module(Block(), mesh, {
    "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()})
"""
)
