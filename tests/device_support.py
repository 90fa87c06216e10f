"""What the tests of the gate for gradients on a GPU share; first of all a GPU without a GPU: the C interface of
include/finitude/cuda_scan.h over host memory.

`finitude._native.open_device_library(path, "cpu")` makes the gate take CPU tensors for tensors on a device, in that
process."""

import os
import pathlib
import subprocess

import built_once

ROOT = pathlib.Path(__file__).parents[1]

# What a script begins with that trains on the make-believe device. `counts()` gives what was asked of the library since
# the last call; while it holds, no verdict reaches the host but by a wait. `ahead()` gives what was read while backward
# ran; where that is lazy it is read as late as the order of the streams allows, else as soon.
ON_DEVICE = """
import ctypes, json, torch
from torch import nn
from finitude import _native
LIBRARY = {library!r}
assert _native.open_device_library(LIBRARY, "cpu") == ""
host = ctypes.CDLL(LIBRARY)
NAMES = ("scans", "values", "uploads", "waits", "fetches", "flags", "opened")
def counts():
    numbers = (ctypes.c_uint64 * 7)()
    host.finitude_cuda_host_counts(numbers)
    return dict(zip(NAMES, numbers))
hold, capture, fail = host.finitude_cuda_host_hold, host.finitude_cuda_host_capture, host.finitude_cuda_host_fail
lazy = host.finitude_cuda_host_lazy
def ahead():
    numbers = (ctypes.c_uint64 * 4)()
    host.finitude_cuda_host_ahead(numbers)
    return dict(zip(("calls", "ahead", "joins", "scanned"), numbers))
NAN, INF = float("nan"), float("inf")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batches = [torch.randn(8, 4) for _ in range(10)]
def loss_of(x):
    return (model(x) - 1.0).pow(2).mean()
def bits(optimizer):
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return b"".join(t.detach().contiguous().numpy().tobytes() for t in [*model.parameters(), *state])
"""

# A step captured into a CUDA graph and replayed; on a real GPU, after a prelude with `model`, `batches` and `loss_of`.
CAPTURED_STEP = """
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True, fused=True)
x = batches[0].clone()
def step():
    opt.zero_grad(set_to_none=True)
    loss_of(x).backward()
    opt.step()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(4):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for b in batches:
    x.copy_(b)
    graph.replay()
torch.cuda.synchronize()
print("replayed", all(bool(torch.isfinite(p).all()) for p in model.parameters()))
"""


def assert_left_alone(result):
    """Of CAPTURED_STEP: replays ran, nothing was alarmed, and one line says that a graph is not watched."""
    assert result.code == 0 and "replayed True" in result.out and not result.alarms, result.text()
    assert result.err.count("captured into a CUDA graph") == 1, result.text()


def build(*, far=0):
    """The path of the library for tests. far: how far from where it is the memory of tensors is said to be."""
    folder = built_once.made(f"libfinitude_cuda_host {far}", lambda folder: _compile(folder / _NAME, far))
    return str(folder / _NAME)


_NAME = "libfinitude_cuda_host.so"


def _compile(out, far):
    sources = [ROOT / "src/sense/cuda_scan_host.cpp", ROOT / "src/sense/multi_scan_plan.cpp"]
    subprocess.run(
        [
            os.environ.get("CXX", "c++"),
            "-std=c++20",
            "-O1",
            f"-DFINITUDE_HOST_FAR={far}",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            f"-I{ROOT}/src",
            f"-I{ROOT}/include",
            *map(str, sources),
            "-o",
            str(out),
        ],
        check=True,
    )
