"""What the gate costs on a GPU beside what users would pick instead: torch_bench.py OUT.json, run by `make gpu`. The
file is written again after each row, so that a run which is cut short leaves what it had.

Kernels: times between two events on the device, medians with the 10th and 90th percentile. Steps: blocks of steps with
the recorder on and off in turn, in random order, host clock between two synchronisations; medians of the ratios of
neighbouring blocks."""

import ctypes
import json
import os
import platform
import random
import statistics
import sys
import time

import torch
from torch import nn

import finitude

FLOAT = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}  # finitude::sense::DType


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("numel", ctypes.c_uint64),
        ("dtype", ctypes.c_uint32),
        ("ahead", ctypes.c_uint32),
    ]


class Scanner:
    """The library, called as the engine calls it."""

    def __init__(self, tensors):
        self.lib = ctypes.CDLL(os.path.join(os.path.dirname(finitude.__file__), "libfinitude_cuda.so"))
        self.list, self.ticket = ctypes.c_void_p(), ctypes.c_uint64()
        assert self.lib.finitude_cuda_open(0, ctypes.byref(self.list)) == 0
        self.items = (Tensor * len(tensors))(*[Tensor(t.data_ptr(), t.numel(), FLOAT[t.dtype], 0) for t in tensors])
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert self.lib.finitude_cuda_set(self.list, self.items, len(tensors), self.stream) == 0

    def __call__(self):
        status = self.lib.finitude_cuda_set(self.list, self.items, len(self.items), self.stream)
        status |= self.lib.finitude_cuda_scan(self.list, self.stream, None, ctypes.byref(self.ticket))
        assert status == 0


def spread(values):
    values = sorted(values)
    return {
        "median": statistics.median(values),
        "low": values[len(values) // 10],
        "high": values[len(values) * 9 // 10],
    }


def kernel(run, repeats=60):
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return spread(times)


def gradient_sets():
    def llama(width, hidden, layers, words, dtype):
        shapes = [(words, width)]
        for _ in range(layers):
            shapes += [(width, width)] * 4 + [(hidden, width)] * 2 + [(width, hidden), (width,), (width,)]
        return [torch.randn(s, device="cuda", dtype=dtype) for s in [*shapes, (width,), (words, width)]]

    yield "1000 x 4 KB float32", [torch.randn(1024, device="cuda") for _ in range(1000)]
    yield "110 M parameters float32", llama(768, 2048, 12, 20000, torch.float32)
    yield "1.1 billion parameters bfloat16", llama(2048, 5632, 22, 32000, torch.bfloat16)


def contenders(gradients):
    yield "finitude scan", Scanner(gradients)
    yield "torch._foreach_norm", lambda: torch._foreach_norm(gradients)
    parameters = [nn.Parameter(torch.empty(0, device="cuda", dtype=g.dtype)) for g in gradients]
    for p, g in zip(parameters, gradients):
        p.data = g
        p.grad = g
    yield "clip_grad_norm_", lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e30)
    if all(g.dtype != torch.bfloat16 for g in gradients):  # that operation has no kernel for bfloat16
        found, one = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
        yield "unscale (GradScaler)", lambda: torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, one)
    if len(gradients) <= 1000:
        yield "isfinite().all() each", lambda: [torch.isfinite(g).all() for g in gradients]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, width // 64, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def models():
    yield (
        "MLP 784-512-512-10 b64",
        nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
        (64, 784),
    )
    yield "transformer 6x384 T=256 b4", nn.Sequential(*[Block(384) for _ in range(6)]), (4, 256, 384)
    yield (
        "transformer 12x1024 T=512 b8 bfloat16",
        nn.Sequential(*[Block(1024) for _ in range(12)]).bfloat16(),
        (8, 512, 1024),
    )


def large_models():
    yield (
        "transformer 12x1024 T=512 b8 bfloat16",
        nn.Sequential(*[Block(1024) for _ in range(12)]).bfloat16(),
        (8, 512, 1024),
    )
    yield (
        "transformer 24x2048 T=512 b4 bfloat16",
        nn.Sequential(*[Block(2048) for _ in range(24)]).bfloat16(),
        (4, 512, 2048),
    )


SECONDS_PER_ROW, FEWEST_BLOCKS = 6, 9


def steps(model, shape, make, clip, options=None, base=None):
    """Blocks of steps watched with `options` over blocks watched with `base`, or not at all."""
    model = model.cuda()
    x = torch.randn(shape, device="cuda", dtype=next(model.parameters()).dtype)
    optimizer = make(model.parameters())

    def block(n):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(n):
            optimizer.zero_grad()
            model(x).float().pow(2).mean().backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / n * 1e6

    block(10)
    n = max(10, int(20000 / block(10)))
    ratios, controls, off_us, first_us = [], [], [], []
    until = time.monotonic() + SECONDS_PER_ROW
    while time.monotonic() < until or len(ratios) < FEWEST_BLOCKS:

        def on(how):
            if how is None:
                return block(n)
            with finitude.watch(model, optimizer, on_alarm="skip", **how):
                first_us.append(block(1))  # it is traced, because nothing can start this program again
                block(2)
                return block(n)

        order = [lambda: on(options or {}), lambda: on(base), lambda: on(base)]
        keys = [0, 1, 2]
        random.shuffle(keys)
        times = {k: order[k]() for k in keys}
        ratios.append(times[0] / times[1])
        controls.append(times[2] / times[1])
        off_us.append(times[1])
    return {
        "blocks": len(ratios),
        "step_us": statistics.median(off_us),
        "first_us": statistics.median(first_us),
        "ratio": spread(ratios),
        "control": spread(controls),
    }


def main(path):
    def write():
        with open(path, "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)

    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU")
    out = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernels": [],
        "steps": [],
        "streamed": [],
    }
    for name, gradients in gradient_sets():
        size = sum(g.numel() * g.element_size() for g in gradients)
        for contender, run in contenders(gradients):
            out["kernels"].append(
                {"set": name, "bytes": size, "tensors": len(gradients), "what": contender, "us": kernel(run)}
            )
        write()
    optimizers = {
        "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-6, fused=True),
        "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-6),
        "SGD fused": lambda p: torch.optim.SGD(p, lr=1e-9, momentum=0.9, fused=True),
    }
    for name, model, shape in models():
        for optimizer, make in optimizers.items():
            for clip in (False, True) if optimizer == "AdamW fused" else (False,):
                row = steps(model, shape, make, clip)
                out["steps"].append({"model": name, "optimizer": optimizer + (", clipped" if clip else ""), **row})
                write()
    for name, model, shape in large_models():
        row = steps(
            model, shape, optimizers["AdamW fused"], False, {"stream_gradients": "on"}, {"stream_gradients": "off"}
        )
        out["streamed"].append(
            {"model": name, "bytes": sum(p.numel() * p.element_size() for p in model.parameters()), **row}
        )
        write()


main(*sys.argv[1:])
