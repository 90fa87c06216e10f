"""Ranks train; in one step a bad value is born on one of them. RANK_BIRTH (JSON, see cases.py) says where and how.

The line of a birth ends with `# born: KIND`, by which cases.py finds it."""

import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

CASE = json.loads(os.environ["RANK_BIRTH"])
KIND, STRATEGY, MICRO_BATCHES, NAN = CASE["kind"], CASE["strategy"], 2, float("nan")
# All ranks of a model that is split by its features have the same batch; those of a pipeline read it on the first.
ONE_BATCH = ("tp", "sp", "pp")


class Here:
    """Whether the value is to be born: in this step, micro-batch and rank."""

    step = micro_batch = rank = -1

    def __call__(self, *kinds):
        now = (self.step, self.micro_batch) == (CASE["step"], CASE["micro_batch"])
        return now and KIND in kinds and self.rank in (CASE["rank"], CASE.get("twin"))


here = Here()


class Faulty(nn.Module):
    """A layer that changes nothing but in the step of the case."""

    def forward(self, h):
        return getattr(self, KIND)(h) if here(KIND) and hasattr(self, KIND) else h

    def log(self, h):
        return h + torch.log(-h.abs() - 1)  # born: log

    def sqrt(self, h):
        return h * torch.sqrt(-h.abs() - 1)  # born: sqrt

    def division(self, h):
        zero = h - h
        return h + zero / zero  # born: division

    def exp(self, h):
        return h * torch.exp(h.abs() + 1000)  # born: exp

    def acos(self, h):
        return h + torch.acos(h.abs() + 2)  # born: acos

    def power(self, h):
        return h + (-h.abs() - 1) ** 0.5  # born: power

    def masked(self, h):
        scores = h.masked_fill(torch.ones_like(h, dtype=torch.bool), -torch.inf)
        return h + torch.softmax(scores, -1)  # born: masked

    def empty(self, h):
        return h + h[..., :0].mean()  # born: empty

    def half(self, h):
        wide = h.half() * 0 + 300
        return h * (wide * wide).float()  # born: half

    def variance(self, h):
        return h + h.flatten()[:1].var()  # born: variance

    def root_of_zero(self, h):
        return h + torch.sqrt(h * 0)  # born: root_of_zero

    def norm_of_zero(self, h):
        return h + (h * 0).pow(2).sum(-1, keepdim=True).sqrt()  # born: norm_of_zero

    def hidden_branch(self, h):
        return torch.where(h < 1e9, h, torch.exp(h.abs() + 1000))  # born: hidden_branch


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.middle, self.down = nn.Linear(4, 8), Faulty(), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.middle(torch.relu(self.up(x))))


class Tokens(nn.Module):
    """For sequence parallel: the layer in the middle has this rank's features of all tokens."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.middle, self.down = nn.LayerNorm(4), nn.Linear(4, 8), Faulty(), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.middle(torch.relu(self.up(self.norm(x))))).mean(1)


class Experts(nn.Module):
    """An expert on each rank; tokens are exchanged. In every other step the experts get tokens of their own rank only."""

    def __init__(self):
        super().__init__()
        self.dense, self.expert, self.middle = nn.Linear(4, 4), nn.Linear(4, 4), Faulty()

    def forward(self, x):
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        x, world, me = self.dense(x), dist.get_world_size(), dist.get_rank()
        far = 0 if here.step % 2 else 1
        sizes = [far] * world
        sizes[me] = len(x) - far * (world - 1)
        got = all_to_all_single_autograd(x, sizes, sizes, dist.group.WORLD)
        return all_to_all_single_autograd(self.middle(self.expert(got)), sizes, sizes, dist.group.WORLD)


def split(model, strategy):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    world = dist.get_world_size()
    if strategy in ("ddp", "no_sync", "zero"):
        return nn.parallel.DistributedDataParallel(model)
    if strategy == "ep":
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, ["expert.weight", "expert.bias"]
        )
        return nn.parallel.DistributedDataParallel(model)
    if strategy == "fsdp1":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if strategy == "fsdp2":
        for part in (model.up, model.down, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (world,)))
        return model
    if strategy == "hsdp":
        return fully_shard(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")))
    mesh = init_device_mesh("cpu", (world,))
    if strategy == "tp":
        return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    plan = {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def local(t):
    return getattr(t, "_local_tensor", t).detach()


def batch():
    rows = (8, 4, 4) if STRATEGY == "sp" else (8, 4)
    x, y = torch.randn(rows), torch.randint(0, 4, (8,))
    if here("data"):
        x[3, 1] = NAN  # born: data
    return x, y


def spoil_weights(parameters):
    if here("weight"):
        local(next(p for p in parameters if local(p).numel())).view(-1)[0] = NAN  # born: weight


def spoil_gradients(parameters):
    if here("gradient"):
        local(next(p.grad for p in parameters if local(p).numel())).view(-1)[0] = NAN  # born: gradient


def loss_of(logits, y):
    loss = nn.functional.cross_entropy(logits, y)
    if here("loss"):
        loss = loss * torch.log(loss.detach() * 0)  # born: loss
    return loss


def train(model, opt, steps):
    micro_batches = MICRO_BATCHES if STRATEGY == "no_sync" else 1
    for step in range(steps):
        opt.zero_grad()
        for k in range(micro_batches):
            here.step, here.micro_batch = step, k
            x, y = batch()
            spoil_weights(model.parameters())
            last = k == micro_batches - 1
            with contextlib.nullcontext() if last or STRATEGY != "no_sync" else model.no_sync():
                loss_of(model(x), y).backward()
        spoil_gradients(model.parameters())
        opt.step()


def train_pipeline(rank, world, steps):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    first, last = rank == 0, rank == world - 1
    layer = nn.Linear(4 if first else 8, 4 if last else 8)
    part = nn.Sequential(layer, Faulty(), nn.Tanh()) if first else nn.Sequential(Faulty(), layer)
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=loss_of)
    opt = torch.optim.AdamW(part.parameters(), lr=0.01)
    for step in range(steps):
        here.step, here.micro_batch = step, 0
        opt.zero_grad()
        x, y = batch()
        spoil_weights(part.parameters())
        schedule.step(*([x] if first else []), **({"target": y} if last else {}))
        spoil_gradients(part.parameters())
        opt.step()


def main():
    dist.init_process_group("gloo")
    here.rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(CASE["seed"])
    if STRATEGY == "pp":
        train_pipeline(here.rank, world, CASE["step"] + 2)
    else:
        made = Tokens() if STRATEGY == "sp" else Experts() if STRATEGY == "ep" else MLP()
        model = split(made, STRATEGY)
        torch.manual_seed(CASE["seed"] + (0 if STRATEGY in ONE_BATCH else 1 + here.rank))
        if STRATEGY == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
        else:
            opt = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, opt, CASE["step"] + 2)
    dist.destroy_process_group()
    time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)


main()
