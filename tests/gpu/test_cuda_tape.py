"""The tape of a step on a GPU: recorded there, replayed there bit by bit, and on the CPU with the same class of
failure. What no GPU is needed for: tests/gpu/test_tape_devices.py."""

import pytest

pytestmark = pytest.mark.cuda

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from finitude import _native  # noqa: E402


def mlp(dropout=0.0):
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 4))


class Attention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(64, 192), nn.Linear(64, 4), dropout

    def forward(self, x):
        q, k, v = (z.view(*x.shape[:2], 2, 32).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return self.out(a.transpose(1, 2).reshape(x.shape)).mean(1)


class Recurrent(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers, self.out = nn.LSTM(16, 8, num_layers=2, batch_first=True, dropout=dropout), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.layers(x)[0][:, -1])


def cnn():  # No bias before the norm: its gradient is rounding alone, of which AdamW makes a whole update.
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 4)
    )


PROGRAMS = {
    "MLP": (mlp, (8, 16), None),
    "MLP with dropout": (lambda: mlp(0.5), (8, 16), None),
    "MLP under autocast": (mlp, (8, 16), torch.float16),
    "CNN with BatchNorm": (cnn, (4, 3, 14, 14), None),
    "attention in bfloat16": (Attention, (2, 16, 64), torch.bfloat16),
    "attention in float32": (Attention, (2, 16, 64), None),
    "attention with dropout": (lambda: Attention(0.2), (2, 16, 64), torch.bfloat16),
    "LSTM": (Recurrent, (4, 6, 16), None),
    "LSTM with dropout": (lambda: Recurrent(0.3), (4, 6, 16), None),
}
OPTIMIZERS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "capturable": {"capturable": True}}


def recorded(name, bad=False, **options):
    """(tape, what is on it) of a second step. bad: with an Inf in the batch."""
    make, shape, dtype = PROGRAMS[name]
    assert torch.cuda.is_available(), "a GPU is expected here (FINITUDE_EXPECT_GPU=1), and torch finds none"
    torch.manual_seed(0)
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    batch = torch.randn(shape)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype or torch.float16, enabled=dtype is not None):
            loss = model(batch.cuda(non_blocking=True)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()
    if bad:
        batch.view(-1)[0] = float("inf")
    _native.tape_start()
    loss = step()
    _native.tape_stop()
    seen = [_native.tape_outcome("loss", "loss", loss)]
    for key, p in model.named_parameters():
        _native.tape_name(p, "parameter", key)
        seen += [_native.tape_outcome("gradient", key, p.grad), _native.tape_outcome("parameter", key, p.detach())]
    return _native.tape_take(), seen


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits_on_the_gpu(name):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        tape, seen = recorded(name)
    finally:
        torch.use_deterministic_algorithms(False)
    about = _native.tape_about(tape)
    assert all(seen) and not about["gaps"] and about["devices"] == ["cpu", "cuda:0"]
    states = torch.cuda.get_rng_state(), torch.get_rng_state()
    played = _native.tape_play(tape, ["aten"], 0)
    assert played["why_not"] == "" and not played["missing"] and played["identical"], played
    assert torch.equal(states[0], torch.cuda.get_rng_state()) and torch.equal(states[1], torch.get_rng_state())


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_class_of_failure_on_the_cpu(name, tmp_path):
    tape, _ = recorded(name, bad=True)
    (tmp_path / "step.tape").write_bytes(tape)
    code, out, err, _ = _native.replay_command(["--device", "cpu", str(tmp_path / "step.tape")])
    assert code == 0, out + err
    assert out.startswith("recorded on cuda:0, replayed on the CPU: ") and (
        "\nsame class of failure" in out or "\nidentical" in out
    ), out


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_healthy_step_is_close_on_the_cpu(name, tmp_path):
    """What the forms of fused operators give is what the kernels gave, but for rounding."""
    load_file = pytest.importorskip("safetensors.torch").load_file

    tape, _ = recorded(name)
    (tmp_path / "step.tape").write_bytes(tape)
    for device in ("cuda", "cpu"):
        words = [
            "--device",
            device,
            "--save-tensors",
            str(tmp_path / f"{device}.safetensors"),
            str(tmp_path / "step.tape"),
        ]
        _, out, err, _ = _native.replay_command(words)
        assert (tmp_path / f"{device}.safetensors").exists(), out + err
    there, here = (load_file(tmp_path / f"{device}.safetensors") for device in ("cuda", "cpu"))
    tolerance = 1e-3 if PROGRAMS[name][2] is None else 5e-2
    for key, value in there.items():
        torch.testing.assert_close(
            here[key],
            value,
            rtol=tolerance,
            atol=tolerance * max(1e-3, float(value.abs().max())),
            msg=lambda m, k=key: f"{k}: {m}",
        )


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gpu_optimizers_are_played_on_the_cpu(kind):
    tape, _ = recorded("MLP", **OPTIMIZERS[kind])
    assert _native.tape_play(tape, ["aten"], 0)["identical"]
    played = _native.tape_play(tape, ["aten"], 0, "cpu")
    assert played["why_not"] == "" and not played["missing"], played


@pytest.mark.parametrize("name", ["MLP", "MLP with dropout", "attention in float32", "LSTM"])
def test_cpu_step_is_played_on_the_gpu(name):
    make, shape, _ = PROGRAMS[name]
    torch.manual_seed(0)
    model, batch = make(), torch.randn(shape)
    model(batch).pow(2).mean().backward()
    model.zero_grad()
    _native.tape_start()
    loss = model(batch).pow(2).mean()
    loss.backward()
    _native.tape_stop()
    assert _native.tape_outcome("loss", "loss", loss.detach())
    state = torch.get_rng_state()
    played = _native.tape_play(_native.tape_take(), ["aten"], 0, "cuda")
    assert played["why_not"] == "" and not played["missing"], played
    assert torch.equal(state, torch.get_rng_state())


def test_gpu_generators_are_captured_and_restored():
    torch.cuda.manual_seed(5)
    _native.watch_device_generators(list(torch.cuda.default_generators))
    try:
        torch.randn(8, device="cuda")
        taken = _native.Generators.from_bytes(_native.take_generators().bytes())
        first = torch.randn(8, device="cuda")
        taken.restore()
        assert torch.equal(first, torch.randn(8, device="cuda"))
    finally:
        _native.watch_device_generators([])
