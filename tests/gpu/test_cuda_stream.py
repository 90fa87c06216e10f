"""Gradients read while backward runs, on a GPU: what tests/gpu/test_device_stream.py checks on a make-believe device, with
real streams; that nothing waits, that the reads do overlap with backward, that no read comes too early and that memory
is not kept."""

import textwrap

import pytest

import device_support
from helpers import plain, run, write_script

pytestmark = pytest.mark.cuda

# 24 gradients of 4 MB and 24 small ones; a batch is sent off at 8 MB.
ON_GPU = """
import torch
from torch import nn
from finitude import _native
assert torch.cuda.is_available(), "a GPU is expected here (FINITUDE_EXPECT_GPU=1), and torch finds none"
NAN, INF = float("nan"), float("inf")
try:
    _native.set_stream_batch(8 << 20)
except AttributeError:
    pass
def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*[m for _ in range(24) for m in (nn.Linear(1024, 1024), nn.Tanh())]).cuda()
model = make()
batches = [torch.randn(256, 1024, device="cuda") for _ in range(12)]
poison = set()
def keep_watch(name, p):
    p.register_hook(lambda g: g * NAN if name in poison else g)
def watch_model():
    for name, p in model.named_parameters():
        keep_watch(name, p)
watch_model()
def loss_of(x):
    return (model(x) - 1.0).pow(2).mean()
def bits(optimizer):
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return b"".join(t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for t in [*model.parameters(), *state] if t.numel())
"""

OPTIONS = ("--on-alarm", "skip", "--stream-gradients", "on")


def on_gpu(folder, body, *options):
    result = run(folder, ON_GPU + textwrap.dedent(body), *(options or OPTIONS), cold=True, limit=300)
    assert "a GPU is expected here" not in result.err, result.err
    return result


PROFILED = """
import json, os, tempfile
batches = [x.repeat(32, 1) for x in batches]  # the device is what a step waits for
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
def step(x):
    opt.zero_grad()
    loss_of(x).backward()
    opt.step()
for x in batches[:4]:
    step(x)
torch.cuda.synchronize()
torch.cuda.set_sync_debug_mode("error")
for x in batches:
    step(x)
torch.cuda.set_sync_debug_mode("default")
torch.cuda.synchronize()
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
    for x in batches:
        step(x)
path = os.path.join(tempfile.mkdtemp(), "trace.json")
p.export_chrome_trace(path)
events = json.load(open(path))["traceEvents"]
calls = [e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMalloc", "cudaHostAlloc", "cudaFree")
print("waits", [n for n in calls if n in WAITS], "devices", sum(n == "cudaDeviceSynchronize" for n in calls) <= 1)
kernels = [e for e in events if e.get("cat") == "kernel"]
ahead = [e for e in kernels if "ahead_kernel" in e["name"]]
others = [e for e in kernels if "finitude" not in e["name"] and "scan_kernel" not in e["name"] and "ahead_kernel" not in e["name"]]
streams = {e["args"]["stream"] for e in ahead}
beside = sum(any(o["args"]["stream"] not in streams and o["ts"] < a["ts"] + a["dur"] and a["ts"] < o["ts"] + o["dur"] for o in others)
             for a in ahead)
print("ahead", len(ahead), "streams", len(streams), "beside", beside, "scans", sum("scan_kernel" in e["name"] for e in kernels))
"""


def test_reads_overlap_with_backward_and_nothing_waits(tmp_path):
    result = on_gpu(tmp_path, PROFILED)
    assert "waits [] devices True" in result.out, result.text()
    words = next(line for line in result.out.splitlines() if line.startswith("ahead")).split()
    n = {k: int(v) for k, v in zip(words[::2], words[1::2])}
    assert n["ahead"] >= 12 * 10 and n["streams"] == 1 and n["scans"] == 12, result.text()
    assert n["beside"] >= n["ahead"] * 3 // 4, "the reads do not run beside backward: " + result.text()
    result.assert_silent()


TWICE = """
def train(skip_it):
    global model
    model = make(1)
    watch_model()
    opt = OPTIMIZER
    for i, x in enumerate(batches):
        opt.zero_grad(set_to_none=i % 2 == 0)
        poison.clear()
        if i == 5 and skip_it:
            continue
        if i == 5:
            poison.add("20.weight")
        loss_of(x).backward()
        opt.step()
    return bits(opt)
watched, plain = train(False), train(True)
print("same", watched == plain)
"""


@pytest.mark.parametrize(
    "optimizer",
    [
        "AdamW(model.parameters(), lr=1e-4, fused=True)",
        "SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)",
        "RMSprop(model.parameters(), lr=1e-4)",
    ],
)
def test_a_vetoed_step_never_happened(tmp_path, optimizer):
    result = on_gpu(tmp_path, TWICE.replace("OPTIMIZER", "torch.optim." + optimizer))
    assert "same True" in result.out, result.text()
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["weights"], alarm["sink"]["name"]) == (5, "clean", "20.weight"), result.text()


def test_no_gradient_is_read_before_it_is_there(tmp_path):
    # The memory that gradients are made in holds NaN until then, and the streams that make them are slow.
    body = """
    opt = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    sides = [torch.cuda.Stream() for _ in range(3)]
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)
        @staticmethod
        def backward(ctx, g):
            torch.cuda._sleep(2_000_000)
            return g
    def forward(x):
        main = torch.cuda.current_stream()
        for i, layer in enumerate(model):
            side = sides[i // 2 % 3]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x = Slow.apply(layer(x))
            main.wait_stream(side)
        return x
    for x in batches:
        opt.zero_grad()
        loss = (forward(x) - 1.0).pow(2).mean()
        memory = [torch.full((1024, 1024), NAN, device="cuda") for _ in range(40)]
        for side in sides:
            with torch.cuda.stream(side):
                memory += [torch.full((1024, 1024), NAN, device="cuda") for _ in range(20)]
        torch.cuda.synchronize()
        del memory
        loss.backward()
        opt.step()
    print("finite", all(bool(torch.isfinite(p).all()) for p in model.parameters()))
    """
    result = on_gpu(tmp_path, body)
    result.assert_silent()
    assert "finite True" in result.out, result.text()


def test_gradients_changed_after_backward_are_read_again(tmp_path):
    body = """
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for i, x in enumerate(batches):
        opt.zero_grad()
        poison.clear()
        if i == 3:
            poison.add("30.weight")
        loss_of(x).backward()
        if i == 3:
            model[30].weight.grad = torch.zeros_like(model[30].weight)
        if i == 6:
            model[40].weight.grad[5, 5] = INF
        if i == 9:
            memory = model[44].weight.grad.data_ptr()
            model[44].weight.grad = None
            model[44].weight.grad = torch.full((1024, 1024), NAN, device="cuda")
        opt.step()
    print("finite", all(bool(torch.isfinite(p).all()) for p in model.parameters()))
    """
    result = on_gpu(tmp_path, body)
    assert [(a["step"], a["sink"]["name"]) for a in result.alarms] == [(6, "40.weight"), (9, "44.weight")], (
        result.text()
    )
    assert "finite True" in result.out, result.text()


@pytest.mark.parametrize("clip", ["", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"])
def test_on_and_off_are_bit_identical(tmp_path, clip):
    body = f"""
    torch.use_deterministic_algorithms(True)
    import hashlib
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for x in batches:
        opt.zero_grad()
        for _ in range(2):
            loss_of(x).backward()
        {clip or "pass"}
        opt.step()
    print(hashlib.sha256(bits(opt)).hexdigest())
    """
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    watched = run(tmp_path, ON_GPU + textwrap.dedent(body), *OPTIONS, cold=True, env=env, limit=300)
    script = write_script(tmp_path, ON_GPU + textwrap.dedent(body))
    assert watched.code == 0 and watched.out == plain(tmp_path, script.name, env=env, cold=True).out, watched.text()


def test_memory_is_not_kept(tmp_path):
    body = """
    opt = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    def train():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        for x in batches * 4:
            opt.zero_grad(set_to_none=True)
            loss_of(x).backward()
            opt.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    train()
    _native.set_stream_batch(8 << 20)
    on = train()
    _native.set_on(False)
    off = train()
    print("more", on - off)
    """
    result = on_gpu(tmp_path, body)
    more = int(next(line for line in result.out.splitlines() if line.startswith("more")).split()[1])
    assert more <= 3 * (8 << 20), result.text()


def test_a_captured_step_is_left_alone(tmp_path):
    device_support.assert_left_alone(on_gpu(tmp_path, device_support.CAPTURED_STEP))


def test_a_scaler_and_a_scheduler_of_micro_batches(tmp_path):
    body = """
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 10)
    for i in range(24):
        opt.zero_grad()
        poison.clear()
        if i in (7, 15):
            poison.add("2.weight")
        for k in range(1 + (i // 8)):
            scaler.scale(loss_of(batches[i % 12])).backward()
        if i % 2:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
    print("finite", all(bool(torch.isfinite(p).all()) for p in model.parameters()))
    """
    result = on_gpu(tmp_path, body, "--on-alarm", "stop", "--stream-gradients", "on")
    result.assert_no_alarm()
    assert result.watched["scaler_skips"] == 2 and "finite True" in result.out, result.text()
