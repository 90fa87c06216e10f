"""Tapes of a GPU, played on a machine that has none: made by hand or recorded on the CPU and moved, for no GPU is here. What is
recorded of a device is tested on one that is none (tests/native/pretend_device.cpp). With a GPU: tests/test_cuda_tape.py."""

import math
import pathlib
import struct

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

import pretend_device
import tape_format as t
import tape_programs
from finitude import _native

GPU = ["cuda:0"]
CODES = {torch.uint8: 0, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}


class Made:
    """A tape of a GPU, call by call, over tensors of this process."""

    def __init__(self):
        self.operators, self.storages, self.entries, self.outcomes = [], [], [], []

    def _storage(self, described, tensor):
        self.storages.append(described)
        return t.tensor(len(self.storages) - 1, list(tensor.shape), list(tensor.stride()), dtype=CODES[tensor.dtype])

    def given(self, tensor):
        plain = tensor.detach().clone()
        return self._storage(t.given(bytes(plain.untyped_storage().tolist())), plain)

    def result(self, like):
        like = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        return self._storage(t.made(like.untyped_storage().nbytes()), like)

    def call(self, name, args, results):
        key = (name, "") if isinstance(name, str) else name
        if key not in self.operators:
            self.operators.append(key)
        self.entries.append(t.call(self.operators.index(key), args, results))

    def outcome(self, *values):
        self.outcomes.extend(values)

    def bytes(self):
        return t.tape(self.operators, self.storages, self.entries, self.outcomes, devices=GPU)

    def play(self, folder):
        """What it came to, in the order of the outcomes."""
        file, out = folder / "made.tape", folder / "out.safetensors"
        file.write_bytes(self.bytes())
        code, said, err, _ = _native.replay_command(["--device", "cpu", "--save-tensors", str(out), str(file)])
        assert out.exists(), said + err
        found = safetensors.torch.load_file(out)
        return [found[key] for key in sorted(found, key=lambda k: (len(k), k))], said


NONE, UNDEFINED = t.NONE, b"\x0a"


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected.detach(), rtol=tolerance, atol=tolerance)


def shuffled(tensor):
    """As the kernels give it: heads behind rows in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def attention(dtype=torch.float32, heads=4, key_heads=4, rows=5, columns=5):
    generator = torch.Generator().manual_seed(3)
    make = lambda h, n: torch.randn(2, h, n, 8, generator=generator).to(dtype).requires_grad_()
    return make(heads, rows), make(key_heads, columns), make(key_heads, columns), torch.randn(2, heads, rows, 8, generator=generator).to(dtype)


@pytest.mark.parametrize("kind", ["flash", "cudnn"])
@pytest.mark.parametrize(("dtype", "causal", "key_heads"), [(torch.float32, False, 4), (torch.float32, True, 4), (torch.float32, True, 2),
                                                            (torch.bfloat16, True, 4), (torch.float16, False, 4)])
def test_attention_and_its_gradient_by_plain_operations(kind, dtype, causal, key_heads, tmp_path):
    q, k, v, grad = attention(dtype, key_heads=key_heads)
    made = Made()
    args = [made.given(x) for x in (q, k, v)]
    out = made.result(shuffled(q))
    sums = made.result(torch.empty(2, 4, 5) if kind == "flash" else torch.empty(2, 4, 5, 1))
    seed, offset = made.result(torch.empty(2, dtype=torch.int64)), made.result(torch.empty((), dtype=torch.int64))
    name = f"aten::_scaled_dot_product_{kind}_attention"
    given = [t.number(0), t.boolean(causal), t.boolean(False), NONE]
    if kind == "cudnn":
        given = [NONE, t.boolean(True), *given]
    made.call(name, [*args, *given], [out, sums, UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), seed, offset, UNDEFINED])
    g = made.given(shuffled(grad))
    grads = [made.result(x) for x in (q, k, v)]
    lengths = [UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), t.number(0), t.boolean(causal)]
    behind = [*lengths, seed, offset, NONE] if kind == "flash" else [seed, offset, UNDEFINED, *lengths, NONE]
    made.call(name + "_backward", [g, *args, out, sums, *behind], grads)
    made.outcome(out, *grads)
    found, said = made.play(tmp_path)
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal, enable_gqa=key_heads != 4)
    expected.backward(grad.float())
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    for a, b in zip(found, (expected, q.grad, k.grad, v.grad)):
        assert a.dtype == dtype
        close(a.float(), b.float(), tolerance)
    assert f"by plain operations: {name}, {name}_backward" in said


@pytest.mark.parametrize(("bias", "causal"), [(False, True), (True, False)])
def test_efficient_attention_with_padded_sums_and_a_bias(bias, causal, tmp_path):
    q, k, v, grad = attention(columns=7)
    mask = torch.randn(1, 4, 5, 7, generator=torch.Generator().manual_seed(1)).requires_grad_() if bias else None
    made = Made()
    args = [*(made.given(x) for x in (q, k, v)), made.given(mask) if bias else UNDEFINED]
    out, sums = made.result(shuffled(q)), made.result(torch.empty(2, 4, 32))
    seed, offset = (made.result(torch.empty((), dtype=torch.int64)) for _ in range(2))
    made.call("aten::_scaled_dot_product_efficient_attention", [*args[:3], args[3] if bias else NONE, t.boolean(True), t.number(0),
                                                                t.boolean(causal), NONE], [out, sums, seed, offset])
    wanted = (*(made.result(x) for x in (q, k, v)), made.result(mask) if bias else UNDEFINED)
    made.call("aten::_scaled_dot_product_efficient_attention_backward",
              [made.given(grad), *args, out, sums, seed, offset, t.number(0), t.values(*[t.boolean(True)] * 3, t.boolean(bias)),
               t.boolean(causal), NONE], wanted)
    made.outcome(out, *wanted[:3], *([wanted[3]] if bias else []))
    found, _ = made.play(tmp_path)
    allowed = torch.ones(5, 7, dtype=torch.bool).tril() if causal else None
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask if bias else allowed)
    expected.backward(grad)
    for a, b in zip(found, (expected, q.grad, k.grad, v.grad, *([mask.grad] if bias else []))):
        close(a, b)


def test_a_row_that_may_look_at_nothing_gives_zeros_and_a_nan_stays_one(tmp_path):
    q, k, v, _ = attention()
    bias = torch.zeros(2, 4, 5, 5)
    bias[:, :, 2] = -math.inf
    bad = q.detach().clone()
    bad[0, 0, 1, 0] = math.nan
    made = Made()
    out, sums = made.result(q), made.result(torch.empty(2, 4, 32))
    seed = made.result(torch.empty((), dtype=torch.int64))
    made.call("aten::_scaled_dot_product_efficient_attention", [made.given(bad), made.given(k), made.given(v), made.given(bias), t.boolean(True),
                                                                t.number(0), t.boolean(False), NONE], [out, sums, seed, UNDEFINED])
    made.outcome(out)
    (found,), _ = made.play(tmp_path)
    assert (found[:, :, 2] == 0).all() and found[0, 0, 1].isnan().all() and found.isnan().sum() == 8


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent_layers_of_cudnn(name, both, tmp_path):
    torch.manual_seed(0)
    layer = getattr(nn, name)(3, 4, num_layers=2, bidirectional=both)
    x = torch.randn(6, 2, 3, requires_grad=True)
    states = [torch.randn(4 if both else 2, 2, 4, requires_grad=True) for _ in range(2 if name == "LSTM" else 1)]
    weights = [p for group in layer.all_weights for p in group]
    out, final = layer(x, tuple(states) if name == "LSTM" else states[0])
    grad = torch.randn_like(out)
    (out * grad).sum().backward()
    made = Made()
    given, listed = made.given(x), t.values(*(made.given(w) for w in weights))
    hx, cx = made.given(states[0]), made.given(states[1]) if name == "LSTM" else NONE
    buffer = made.given(torch.zeros(64))
    mode = {"RNN": 1, "LSTM": 2, "GRU": 3}[name]
    form = [t.integer(mode), t.integer(4), t.integer(0), t.integer(2), t.boolean(False), t.number(0), t.boolean(True), t.boolean(both), t.values(), NONE]
    results = [made.result(out), made.result(states[0]), made.result(states[0] if name == "LSTM" else torch.empty(0))]
    reserve = made.result(torch.empty(100, dtype=torch.uint8))
    made.call("aten::_cudnn_rnn", [given, listed, t.integer(4), buffer, hx, cx, *form], [*results, reserve, UNDEFINED])
    grads = [made.result(x), made.result(states[0]), made.result(states[0]) if name == "LSTM" else UNDEFINED]
    # The gradients of all weights lie in one piece of memory there.
    sizes = [w.numel() for w in weights]
    made.storages.append(t.made(4 * sum(sizes)))
    whole = len(made.storages) - 1
    parts = [t.tensor(whole, list(w.shape), list(w.stride()), sum(sizes[:i])) for i, w in enumerate(weights)]
    mask = t.values(*[t.boolean(True)] * 4)
    made.call("aten::_cudnn_rnn_backward", [given, listed, t.integer(4), buffer, hx, cx, results[0], made.given(grad), NONE, NONE, *form, reserve, mask],
              [*grads, t.values(*parts)])
    made.outcome(results[0], results[1], grads[0], grads[1], *parts)
    found, said = made.play(tmp_path)
    hidden = final[0] if name == "LSTM" else final
    for a, b in zip(found, (out, hidden, x.grad, states[0].grad, *(w.grad for w in weights)), strict=True):
        close(a, b)
    assert "by plain operations: aten::_cudnn_rnn, aten::_cudnn_rnn_backward" in said


@pytest.mark.parametrize("biased", [False, True])
def test_fused_cells(biased, tmp_path):
    torch.manual_seed(1)
    tensor = lambda *s: torch.randn(*s, requires_grad=True)
    gates, hidden, cx, b1, b2, gh, gc = tensor(3, 16), tensor(3, 16), tensor(3, 4), tensor(16), tensor(16), torch.randn(3, 4), torch.randn(3, 4)
    i, f, c, o = (gates + hidden + (b1 + b2 if biased else 0)).chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * c.tanh()
    hy = o.sigmoid() * cy.tanh()
    torch.autograd.backward([hy, cy], [gh, gc])
    made = Made()
    old, new_h, new_c, workspace = made.given(cx), made.result(hy), made.result(cy), made.result(gates)
    made.call("aten::_thnn_fused_lstm_cell", [made.given(gates), made.given(hidden), old, *(made.given(b) if biased else NONE for b in (b1, b2))],
              [new_h, new_c, workspace])
    of = [made.result(gates), made.result(cx), made.result(b1) if biased else UNDEFINED]
    made.call("aten::_thnn_fused_lstm_cell_backward_impl", [made.given(gh), made.given(gc), old, new_c, workspace, t.boolean(biased)], of)
    made.outcome(new_h, new_c, *of[:2], *of[2:2 + biased])
    for a, b in zip(made.play(tmp_path)[0], (hy, cy, gates.grad, cx.grad, *([b1.grad] if biased else [])), strict=True):
        close(a, b)

    x, h, hx = tensor(3, 12), tensor(3, 12), tensor(3, 4)
    c1, c2 = tensor(12), tensor(12)
    xs, hs = ((u + b if biased else u).chunk(3, 1) for u, b in ((x, c1), (h, c2)))
    r, z = (xs[0] + hs[0]).sigmoid(), (xs[1] + hs[1]).sigmoid()
    n = (xs[2] + r * hs[2]).tanh()
    y = n + z * (hx - n)
    y.backward(gh)
    made = Made()
    out, workspace = made.result(y), made.result(torch.empty(3, 20))
    made.call("aten::_thnn_fused_gru_cell", [made.given(x), made.given(h), made.given(hx), *(made.given(b) if biased else NONE for b in (c1, c2))],
              [out, workspace])
    of = [made.result(x), made.result(h), made.result(hx), *((made.result(c1), made.result(c2)) if biased else (UNDEFINED, UNDEFINED))]
    made.call("aten::_thnn_fused_gru_cell_backward", [made.given(gh), workspace, t.boolean(biased)], of)
    made.outcome(out, *(of if biased else of[:3]))
    for a, b in zip(made.play(tmp_path)[0], (y, x.grad, h.grad, hx.grad, *([c1.grad, c2.grad] if biased else [])), strict=True):
        close(a, b)


def test_batch_norm_convolution_and_softmax_of_cuda(tmp_path):
    torch.manual_seed(2)
    x, w, b, grad = torch.randn(4, 3, 5, 5, requires_grad=True), *(torch.randn(3, requires_grad=True) for _ in range(2)), torch.randn(4, 3, 5, 5)
    mean, var = torch.zeros(3), torch.ones(3)
    made = Made()
    running = [made.given(mean), made.given(var)]
    y = F.batch_norm(x, mean, var, w, b, training=True, momentum=0.1, eps=1e-5)
    y.backward(grad)
    args = [made.given(x), made.given(w), made.given(b)]
    results = [made.result(y), made.result(mean), made.result(var), made.result(torch.empty(64, dtype=torch.uint8))]
    made.call("aten::cudnn_batch_norm", [*args, *running, t.boolean(True), t.number(0.1), t.number(1e-5)], results)
    grads = [made.result(x), made.result(w), made.result(b)]
    made.call("aten::cudnn_batch_norm_backward", [args[0], made.given(grad), args[1], *running, *results[1:3], t.number(1e-5), results[3]], grads)
    kernel = torch.randn(2, 3, 3, 3)
    convolved = F.conv2d(x, kernel, stride=2, padding=1)
    places = made.result(convolved)
    made.call("aten::cudnn_convolution", [args[0], made.given(kernel), *(t.values(*[t.integer(n)] * 2) for n in (1, 2, 1)), t.integer(1),
                                          *[t.boolean(False)] * 3], [places])
    half = torch.randn(3, 5).half()
    soft = made.result(half.float())
    made.call("aten::_log_softmax", [made.given(half), t.integer(1), t.boolean(True)], [soft])
    back = made.result(half)
    made.call("aten::_log_softmax_backward_data", [made.given(torch.ones(3, 5)), soft, t.integer(1), t.integer(5)], [back])
    made.outcome(results[0], *running, *grads, places, soft, back)
    found, said = made.play(tmp_path)
    expected = half.float().log_softmax(1)
    for a, b in zip(found, (y, mean, var, x.grad, w.grad, b.grad, convolved, expected, (1 - 5 * expected.exp()).half()), strict=True):
        close(a.float(), b.float(), 1e-2 if a.dtype == torch.float16 else 1e-5)


def play(tape, device=""):
    return _native.tape_play(tape, ["aten"], 0, device)


def test_what_exists_on_cuda_only_is_named(tmp_path):
    made = Made()
    x = made.given(torch.ones(4))
    made.call("aten::_cudnn_rnn_flatten_weight", [t.values(x), *[t.integer(1)] * 6, t.boolean(False), t.boolean(False)], [made.result(torch.ones(4))])
    made.outcome(x)
    assert play(made.bytes())["missing"] == ["aten::_cudnn_rnn_flatten_weight (exists on CUDA only)"]
    (tmp_path / "a.tape").write_bytes(made.bytes())
    code, out, err, _ = _native.replay_command([str(tmp_path / "a.tape")])
    assert code == 4 and "aten::_cudnn_rnn_flatten_weight (exists on CUDA only)" in err
    # What it gave may be on the tape: then nobody has to call it.
    made.entries.append(t.fill(1, struct.pack("<4f", 1, 2, 3, 4)))
    made.outcomes = [t.tensor(1, [4])]
    found, said = made.play(tmp_path)
    assert found[0].tolist() == [1, 2, 3, 4] and "computed as recorded: aten::_cudnn_rnn_flatten_weight" in said
    # A part of it only is not enough.
    made.entries[-1] = t.fill(1, struct.pack("<3f", 1, 2, 3))
    assert play(made.bytes())["missing"]


def test_the_script_of_a_birth_in_an_operator_of_cuda_says_where_it_runs(tmp_path):
    q, k, v, _ = attention()
    huge = q.detach() * 1e30
    made = Made()
    out, sums, seed = made.result(q), made.result(torch.empty(2, 4, 5)), made.result(torch.empty((), dtype=torch.int64))
    made.call("aten::_scaled_dot_product_flash_attention", [made.given(huge), made.given(k.detach() * 1e30), made.given(v), t.number(0),
                                                            *[t.boolean(False)] * 2, NONE],
              [out, sums, UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), seed, UNDEFINED, UNDEFINED])
    made.outcome(out)
    (tmp_path / "a.tape").write_bytes(made.bytes())
    words = ["--script", str(tmp_path / "birth.py"), str(tmp_path / "a.tape")]
    code, said, err, _ = _native.replay_command(words)
    assert code == 0 and said.endswith(f"written: {tmp_path / 'birth.py'}\n"), said + err
    text = (tmp_path / "birth.py").read_text()
    assert "The operator is one of cuda:0: move the tensors there" in text and "_scaled_dot_product_flash_attention" in text
    assert _native.replay_command(["--device", "cuda", *words])[0] == 2


def test_attention_with_a_dropout_is_told(tmp_path):
    q, k, v, _ = attention()
    made = Made()
    out, sums, seed = made.result(q), made.result(torch.empty(2, 4, 5)), made.result(torch.empty((), dtype=torch.int64))
    made.call("aten::_scaled_dot_product_flash_attention", [*(made.given(x) for x in (q, k, v)), t.number(0.5), *[t.boolean(False)] * 2, NONE],
              [out, sums, UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), seed, UNDEFINED, UNDEFINED])
    made.outcome(out)
    assert "a dropout whose mask no other device can make" in play(made.bytes())["why_not"]


@pytest.mark.parametrize("name", tape_programs.PROGRAMS)
def test_a_step_moved_to_a_gpu_replays_on_the_cpu(name, tmp_path):
    """With every program: what a CPU drew is drawn again, for its generators are named on the tape."""
    torch.set_num_threads(1)
    tape, _, _ = tape_programs.record(_native, name)
    moved = _native.tape_moved(tape, "cuda:0", ["state"])
    about = _native.tape_about(moved)
    assert about["devices"] == ["cpu", "cuda:0"] and {device for kind, _, device in about["where"] if kind == "state"} <= {"cpu"}
    played = play(moved)
    assert played["identical"], played
    (tmp_path / "moved.tape").write_bytes(moved)
    code, out, _, _ = _native.replay_command([str(tmp_path / "moved.tape")])
    assert code == 0 and out.startswith("recorded on cuda:0, replayed on the CPU, since this torch has no cuda: ") and "\nidentical: " in out
    code, out, _, _ = _native.replay_command(["--device", "cpu", str(tmp_path / "moved.tape")])
    assert code == 0 and out.startswith("recorded on cuda:0, replayed on the CPU: ")
    code, out, err, _ = _native.replay_command(["--device", "cuda", str(tmp_path / "moved.tape")])
    assert code == 4 and not out and "CUDA" in err


def test_device_arguments_and_pinned_memory_are_mapped():
    torch.set_num_threads(1)
    w = torch.ones(4)
    _native.tape_start()
    there = w.to(torch.float64)
    made = torch.full((4,), 2.0, device="cpu") + torch.arange(4, device="cpu")
    result = (there * made).float()
    _native.tape_stop()
    assert _native.tape_outcome("value", "result", result)
    tape = _native.tape_take()
    moved = _native.tape_moved(tape, "cuda:1", [])
    # Version 2 is what tells devices, and only a tape that has one is of it.
    assert tape[8] == 1 and moved[8] == 2
    assert b"cuda:1" in moved and play(moved)["identical"]

    pinned = Made()
    x = pinned.given(torch.arange(4.0))
    to, empty = pinned.result(torch.empty(4)), pinned.result(torch.empty(4))
    pinned.call("aten::_to_copy", [x, NONE, NONE, t.device("cuda:0"), t.boolean(True), t.boolean(True), NONE], [to])
    pinned.call("aten::_pin_memory", [to, t.device("cuda:3")], [empty])
    pinned.outcome(empty)
    assert play(pinned.bytes())["why_not"] == ""


def test_how_far_a_replay_is_from_the_recording_is_told(tmp_path):
    """A fill in the place of one input: the loss and the gradient come out otherwise, by so much."""
    w = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    x = torch.tensor([1.0, 1.0, float("inf")])
    _native.tape_start()
    loss = (w * x).sum()
    loss.backward()
    _native.tape_stop()
    assert _native.tape_outcome("loss", "loss", loss.detach()) and _native.tape_outcome("gradient", "w", w.grad)
    # This is a stand-in for another kernel: one value in a fill is an ulp further.
    tape = bytearray(_native.tape_moved(_native.tape_take(), "cuda:0", []))
    at = tape.find(struct.pack("<3f", 1, 1, math.inf))
    assert at > 0
    tape[at:at + 4] = struct.pack("<f", 1 + 2**-23)
    body, data = struct.unpack_from("<Q", tape, 16)[0], struct.unpack_from("<Q", tape, 32)[0]
    begin = -(-(64 + body) // 64) * 64
    struct.pack_into("<Q", tape, 24, t.checksum(bytes(tape[64:64 + body])))
    struct.pack_into("<Q", tape, 40, t.checksum(bytes(tape[begin:begin + data])))
    struct.pack_into("<Q", tape, 56, t.checksum(bytes(tape[:56])))
    (tmp_path / "a.tape").write_bytes(tape)
    code, out, err, _ = _native.replay_command([str(tmp_path / "a.tape")])
    assert code == 0 and "\nsame class of failure" in out, out + err
    assert "differs: gradient w" in out and "  gradient w: 1 ulps, 1.19e-07 relative" in out, out


def test_a_tape_of_version_2_is_still_read():
    """Recorded on a device that is none, with a dropout whose mask is on the tape; the generator of that device counts as Philox."""
    tape = pathlib.Path(__file__).with_name("data").joinpath("tapes", "version_2.tape").read_bytes()
    about = _native.tape_about(tape)
    assert tape[8] == 2 and about["devices"] == ["cpu", "pretend:0"] and about["generators"] == [("cpu", True), ("pretend:0", True)]
    assert (about["outcomes"], about["fills"], about["gaps"]) == (9, 2, [])
    played = play(tape)
    assert played["why_not"] == "" and played["otherwise"] == {"aten::native_dropout": "as recorded"}
    assert ("loss", "loss") in [(kind, name) for kind, name, _ in played["outcomes"]]


STEP = """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).to("pretend:0")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
x = torch.randn(3, 4)
def step():
    loss = model(x.to("pretend:0")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
step()
_native.tape_start()
loss = step()
_native.tape_stop()
assert _native.tape_outcome("loss", "loss", loss.detach())
for name, p in model.named_parameters():
    _native.tape_name(p, "parameter", name)
    assert _native.tape_outcome("gradient", name, p.grad) and _native.tape_outcome("parameter", name, p.detach())
tape = _native.tape_take()
open("step.tape", "wb").write(tape)
here = _native.tape_play(tape, ["aten"], 0)
assert here["identical"] and not here["otherwise"], here
there = _native.tape_play(tape, ["aten"], 0, "cpu")
assert there["identical"] and there["otherwise"] == {"aten::native_dropout": "as recorded"}, there
"""


def test_a_step_on_a_device_is_recorded_and_replayed_there_and_on_the_cpu(tmp_path):
    """Its memory is at addresses that nobody can read: all of it came by copies, also from the thread that computes backward."""
    pretend_device.run(tmp_path, STEP)
    tape = (tmp_path / "step.tape").read_bytes()
    about = _native.tape_about(tape)
    assert about["devices"] == ["cpu", "pretend:0"] and about["gaps"] == []
    where = {name: device for kind, name, device in about["where"] if kind == "parameter"}
    assert set(where.values()) == {"pretend:0"} and len(where) == 4
    assert "cpu" in {device for _, _, device in about["where"]}, "the batch, and the counters of AdamW"
    assert play(tape)["identical"], "on a machine without that device"


def test_generators_of_a_device_are_part_of_what_is_put_back_and_of_a_capsule(tmp_path):
    body = """
one, other = (torch.Generator(device="pretend") for _ in range(2))
_native.watch_device_generators([one, other, torch.Generator()])
one.manual_seed(7), other.manual_seed(9)
taken = _native.take_generators()
same = _native.Generators.from_bytes(taken.bytes())
assert same == taken and same.bytes() == taken.bytes() and taken.bytes()[0] == 2 and taken.bytes().count(b"pretend:0") == 2
one.manual_seed(8)
assert _native.take_generators() != taken
same.restore()
assert (one.initial_seed(), other.initial_seed()) == (7, 9)
_native.watch_device_generators([])
assert _native.take_generators().bytes()[0] == 1
"""
    pretend_device.run(tmp_path, body)


def test_what_a_step_drew_is_left_out_where_it_is_too_large(tmp_path):
    body = """
big = torch.ones(1 << 18).to("pretend:0")
_native.tape_start(8 << 20)
total = sum(nn.functional.dropout(big, 0.5).sum() for _ in range(3))
_native.tape_stop()
assert _native.tape_outcome("value", "total", total)
open("step.tape", "wb").write(_native.tape_take())
"""
    pretend_device.run(tmp_path, body)
    tape = (tmp_path / "step.tape").read_bytes()
    about = _native.tape_about(tape)
    assert about["gaps"] == [] and dict(about["settings"])["draws_left_out"] == "2" and about["fills"] == 2
    assert play(tape)["why_not"] == ""
    code, out, *_ = _native.replay_command([str(tmp_path / "step.tape")])
    assert code == 1 and "what 2 calls drew was too large for the tape, and is drawn anew: it differs" in out
