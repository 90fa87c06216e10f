"""`finitude diff --join`: the step of one process against the same step sharded over two."""

import json

import pytest
import torch  # noqa: F401  its libraries

import helpers
from process_support import warm_launcher, watched_ranks

pytestmark = pytest.mark.slow
TRAINS = """
import sys, time, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Block(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8, eps=eps), nn.Linear(8, 32), nn.Linear(32, 8)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.first, self.second, self.head = Block(1e-5), Block(eps), nn.Linear(8, 4)
    def forward(self, x):
        return self.head(self.second(self.first(x)))

class Stage(nn.Sequential):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

layout, eps = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
net = model = Net(eps)
torch.manual_seed(1)
x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
rank = 0
if layout != "one":
    dist.init_process_group("gloo")
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
if layout == "tensor":
    for block in (net.first, net.second):
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
if layout == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for block in (net.first, net.second):
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    x, y = x.chunk(2)[rank], y.chunk(2)[rank]
if layout == "pipeline":
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    model = Stage(second=net.second, head=net.head) if rank else Stage(first=net.first)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.cross_entropy)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    opt.zero_grad()
    if layout == "pipeline":
        schedule.step(target=y) if rank else schedule.step(x)
    else:
        nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
if layout != "one":
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # the threads of gloo may outlive the interpreter
"""
RUNS = {
    "one": ("one", "1e-5"),
    "eps": ("one", "1e-2"),
    "tensor": ("tensor", "1e-5"),
    "fsdp": ("fsdp", "1e-5"),
    "pipeline": ("pipeline", "1e-5"),
}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """{run: a dump of its step 0; of several ranks that of rank 1}"""
    root, files = tmp_path_factory.mktemp("layouts"), {}
    for name, words in RUNS.items():
        folder = root / name
        folder.mkdir()
        script = helpers.write_script(folder, TRAINS)
        start = () if words[0] == "one" else warm_launcher(folder)
        got = watched_ranks(folder, "--dump", "tensors", "--dump-steps", "0-1", *start, script, *words)
        assert got.code == 0 and "internal failure" not in got.err, got.text()
        files[name] = sorted(folder.glob("finitude-runs/**/step-000000.json"))[-1]
    return files


def joined(dumps, a, b, step=0):
    files = [str(dumps[name]).replace("step-000000", f"step-00000{step}") for name in (a, b)]
    got = helpers.finitude(dumps["one"].parent, "diff", *files, "--join", "--json")
    assert got.out.startswith("{"), got.text()
    return got.code, json.loads(got.out)


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("layout", ["tensor", "fsdp", "pipeline"])
def test_layouts_differ_by_rounding_only(dumps, layout, step):
    code, found = joined(dumps, "one", layout, step)
    assert code == 0 and found["verdict"] == "noise" and found["has_values"], found["divergence"]
    assert found["counts"]["pairs"] >= 23 and found["counts"]["differ"] == 0 and found["counts"]["only_a"] == 0
    assert found["joined"]["b"]["ranks"] == 2 and found["joined"]["b"]["joined"] >= 18, found["joined"]
    assert joined(dumps, layout, "one", step)[1]["verdict"] == "noise"


@pytest.mark.parametrize("layout", ["tensor", "fsdp", "pipeline"])
def test_a_divergence_of_a_sharded_run_is_named(dumps, layout):
    code, found = joined(dumps, "eps", layout)
    first = found["divergence"]
    assert code == 1 and first["kind"] == "settings" and first["a"]["name"] == "Net.second.norm", first


def test_two_layouts_with_each_other(dumps):
    code, found = joined(dumps, "tensor", "pipeline")
    assert code == 0 and found["counts"]["pairs"] >= 23, found["divergence"]
    assert [found["joined"][side]["ranks"] for side in "ab"] == [2, 2] and found["counts"]["only_b"] == 0


def test_without_join_one_rank_is_compared(dumps):
    got = helpers.finitude(dumps["one"].parent, "diff", str(dumps["one"]), str(dumps["tensor"]))
    assert got.code == 1 and "B has 2; --join puts the parts that they hold together" in got.out, got.text()
