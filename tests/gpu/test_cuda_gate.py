"""The gate on a GPU: what tests/gpu/test_device_*.py check on a make-believe device, with streams, graphs and several
dtypes; and that nothing waits for the device, by PyTorch's own sync check and by the profiler."""

import textwrap

import pytest

import device_support
from helpers import run

pytestmark = pytest.mark.cuda

ON_GPU = """
import torch
from torch import nn
assert torch.cuda.is_available(), "a GPU is expected here (FINITUDE_EXPECT_GPU=1), and torch finds none"
NAN, INF = float("nan"), float("inf")
def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 3)).cuda()
model = make()
batches = [torch.randn(32, 64, device="cuda") for _ in range(12)]
def loss_of(x):
    return (model(x) - 1.0).pow(2).mean()
def bits(optimizer):
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return b"".join(t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for t in [*model.parameters(), *state] if t.numel())
"""


def on_gpu(folder, body, *options):
    result = run(folder, ON_GPU + textwrap.dedent(body), *(options or ("--on-alarm", "skip")), cold=True, limit=180)
    assert "a GPU is expected here" not in result.err, result.err
    return result


OPTIMIZERS = {
    "AdamW": "torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)",
    "Adam amsgrad": "torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, fused=True)",
    "SGD": "torch.optim.SGD(model.parameters(), lr=0.01, fused=True)",
    "SGD momentum": "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)",
    "Adagrad": "torch.optim.Adagrad(model.parameters(), lr=0.01)",
    "AdamW foreach": "torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)",
    "AdamW capturable": "torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01, device='cuda'), capturable=True)",
    "RMSprop": "torch.optim.RMSprop(model.parameters(), lr=0.01)",
}

TWICE = """
def train(skip_it):
    global model
    model = make(1)
    opt = OPTIMIZER
    for i, x in enumerate(batches):
        opt.zero_grad(set_to_none=i % 2 == 0)
        loss_of(x).backward()
        if i == 5:
            if skip_it:
                continue
            model[2].bias.grad[1] = NAN
        opt.step()
    return bits(opt)
watched, plain = train(False), train(True)
print("same", watched == plain)
"""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_vetoed_step_never_happened(tmp_path, name):
    result = on_gpu(tmp_path, TWICE.replace("OPTIMIZER", OPTIMIZERS[name]))
    assert "same True" in result.out, result.text()
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["weights"], alarm["sink"]["name"]) == (5, "clean", "2.bias"), result.text()


@pytest.mark.parametrize("dtype", ["torch.float16", "torch.bfloat16", "torch.float64", "torch.complex64"])
def test_every_dtype_of_gradient(tmp_path, dtype):
    body = f"""
    p = nn.Parameter(torch.zeros(1001, device="cuda", dtype={dtype}))
    opt = torch.optim.SGD([p], lr=0.1)
    for i in range(6):
        p.grad = torch.ones_like(p)
        if i == 3:
            p.grad[1000] = INF
        opt.step()
    print("finite", bool(torch.isfinite(torch.view_as_real(p) if p.is_complex() else p).all()))
    """
    result = on_gpu(tmp_path, body)
    assert result.the_alarm()["step"] == 3 and "finite True" in result.out, result.text()


def test_no_host_sync_with_a_fused_optimizer(tmp_path):
    body = """
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    def step(x):
        opt.zero_grad()
        loss_of(x).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    for x in batches[:3]:
        step(x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for x in batches:
        step(x)
    torch.cuda.set_sync_debug_mode("default")
    from torch.profiler import profile, ProfilerActivity
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        for x in batches:
            step(x)
        torch.cuda.current_stream().query()
        names = None
    names = [e.name for e in p.events()]
    # The profiler itself waits for the device once, when it ends.
    waits = [n for n in names if n in ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMalloc", "cudaHostAlloc")]
    devices = sum(n == "cudaDeviceSynchronize" for n in names)
    print("waits", waits, devices <= 1, "scans", sum("scan_kernel" in n for n in names))
    """
    result = on_gpu(tmp_path, body)
    assert "waits [] True" in result.out, result.text()
    assert "scans 12" in result.out, (
        "one launch per step, and that one reads only where the norm is not finite: " + result.text()
    )
    result.assert_silent()


def test_side_streams(tmp_path):
    body = """
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for i, x in enumerate(batches):
        stream = streams[i % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            opt.zero_grad()
            loss_of(x).backward()
            if i in (4, 7):
                model[0].weight.grad[3, 3] = NAN
            opt.step()
        torch.cuda.current_stream().wait_stream(stream)
    print("finite", all(bool(torch.isfinite(p).all()) for p in model.parameters()))
    """
    result = on_gpu(tmp_path, body)
    assert "finite True" in result.out and [a["step"] for a in result.alarms] == [4, 7], result.text()


@pytest.mark.parametrize("fused", [True, False])
def test_a_grad_scaler(tmp_path, fused):
    body = f"""
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused={fused})
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 10)
    for i, x in enumerate(batches):
        opt.zero_grad()
        scaler.scale(loss_of(x) * (NAN if i == 8 else 1.0)).backward()
        if i in (0, 5):  # the first step has no state to fall back on: the host waits, and has to know whose overflow it is
            model[0].weight.grad[0, 0] = INF
        scaler.step(opt)
        scaler.update()
    print("finite", all(bool(torch.isfinite(p).all()) for p in model.parameters()), "flag", "found_inf" in opt.__dict__)
    """
    result = on_gpu(tmp_path, body)
    assert result.watched["scaler_skips"] == 2, result.text()
    assert "finite True" in result.out, result.text()
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (6, "loss", "clean"), result.text()


def test_under_warn_a_scalers_skips_are_normal(tmp_path):
    body = """
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 10)
    for i, x in enumerate(batches):
        opt.zero_grad()
        scaler.scale(loss_of(x)).backward()
        if i in (0, 5):
            model[0].weight.grad[0, 0] = INF
        scaler.step(opt)
        scaler.update()
    """
    result = on_gpu(tmp_path, body, "--on-alarm", "warn")
    result.assert_no_alarm()
    assert (result.watched["scaler_skips"], result.watched["steps"]) == (2, 10), result.text()


def test_loss_is_read_on_stream_that_made_it(tmp_path):
    body = """
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    side = torch.cuda.Stream()
    for x in batches:
        opt.zero_grad()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            memory = [torch.full((), NAN, device="cuda") for _ in range(64)]  # what the loss will lie in holds NaN until it is made
            del memory
            torch.cuda._sleep(20_000_000)
            loss = loss_of(x)
        loss.backward()  # waits for the other stream by itself
        opt.step()
    """
    on_gpu(tmp_path, body).assert_silent()


def test_a_captured_step_is_left_alone(tmp_path):
    device_support.assert_left_alone(on_gpu(tmp_path, device_support.CAPTURED_STEP))


def test_on_and_off_are_bit_identical(tmp_path):
    body = """
    torch.use_deterministic_algorithms(True)
    import hashlib, os
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for x in batches:
        opt.zero_grad()
        loss_of(x).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    print(hashlib.sha256(bits(opt)).hexdigest())
    """
    from helpers import plain, write_script

    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    watched = run(tmp_path, ON_GPU + textwrap.dedent(body), "--on-alarm", "skip", cold=True, env=env, limit=180)
    script = write_script(tmp_path, ON_GPU + textwrap.dedent(body))
    assert watched.code == 0 and watched.out == plain(tmp_path, script.name, env=env, cold=True).out, watched.text()


def test_two_devices(tmp_path):
    body = """
    if torch.cuda.device_count() < 2:
        print("one device")
        raise SystemExit
    a, b = nn.Linear(64, 64).to("cuda:0"), nn.Linear(64, 3).to("cuda:1")
    opt = torch.optim.AdamW([*a.parameters(), *b.parameters()], lr=0.01, fused=True)
    for i, x in enumerate(batches):
        opt.zero_grad()
        b(a(x).to("cuda:1")).pow(2).mean().backward()
        if i == 5:
            b.bias.grad[0] = NAN
        opt.step()
    print("finite", all(bool(torch.isfinite(p).all()) for p in [*a.parameters(), *b.parameters()]))
    """
    result = on_gpu(tmp_path, body)
    if "one device" in result.out:
        return  # nothing to check: the gate that waits is covered by the other tests
    assert "finite True" in result.out and result.the_alarm()["step"] == 5, result.text()
