"""Operators that exist on CUDA only, on tapes made by hand, computed by plain operations: held against what torch
computes on the CPU. That the kernels hand over what the forms take is tested where there is a GPU:
tests/gpu/test_cuda_tape.py."""

import math

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

import tape_format as t
from finitude import _native
from made_tapes import NONE, UNDEFINED, Made, attention, close, shuffled


@pytest.mark.parametrize("kind", ["flash", "cudnn"])
@pytest.mark.parametrize(
    ("dtype", "causal", "key_heads"),
    [
        (torch.float32, False, 4),
        (torch.float32, True, 4),
        (torch.float32, True, 2),
        (torch.bfloat16, True, 4),
        (torch.float16, False, 4),
    ],
)
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
    made.call(
        name, [*args, *given], [out, sums, UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), seed, offset, UNDEFINED]
    )
    g = made.given(shuffled(grad))
    grads = [made.result(x) for x in (q, k, v)]
    lengths = [UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), t.number(0), t.boolean(causal)]
    behind = [*lengths, seed, offset, NONE] if kind == "flash" else [seed, offset, UNDEFINED, *lengths, NONE]
    made.call(name + "_backward", [g, *args, out, sums, *behind], grads)
    made.outcome(out, *grads)
    found, said = made.play(tmp_path)
    expected = F.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=causal, enable_gqa=key_heads != 4
    )
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
    made.call(
        "aten::_scaled_dot_product_efficient_attention",
        [*args[:3], args[3] if bias else NONE, t.boolean(True), t.number(0), t.boolean(causal), NONE],
        [out, sums, seed, offset],
    )
    wanted = (*(made.result(x) for x in (q, k, v)), made.result(mask) if bias else UNDEFINED)
    made.call(
        "aten::_scaled_dot_product_efficient_attention_backward",
        [
            made.given(grad),
            *args,
            out,
            sums,
            seed,
            offset,
            t.number(0),
            t.values(*[t.boolean(True)] * 3, t.boolean(bias)),
            t.boolean(causal),
            NONE,
        ],
        wanted,
    )
    made.outcome(out, *wanted[:3], *([wanted[3]] if bias else []))
    found, _ = made.play(tmp_path)
    allowed = torch.ones(5, 7, dtype=torch.bool).tril() if causal else None
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask if bias else allowed)
    expected.backward(grad)
    for a, b in zip(found, (expected, q.grad, k.grad, v.grad, *([mask.grad] if bias else []))):
        close(a, b)


def test_masked_row_gives_zeros_and_nan_stays_nan(tmp_path):
    q, k, v, _ = attention()
    bias = torch.zeros(2, 4, 5, 5)
    bias[:, :, 2] = -math.inf
    bad = q.detach().clone()
    bad[0, 0, 1, 0] = math.nan
    made = Made()
    out, sums = made.result(q), made.result(torch.empty(2, 4, 32))
    seed = made.result(torch.empty((), dtype=torch.int64))
    made.call(
        "aten::_scaled_dot_product_efficient_attention",
        [
            made.given(bad),
            made.given(k),
            made.given(v),
            made.given(bias),
            t.boolean(True),
            t.number(0),
            t.boolean(False),
            NONE,
        ],
        [out, sums, seed, UNDEFINED],
    )
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
    form = [
        t.integer(mode),
        t.integer(4),
        t.integer(0),
        t.integer(2),
        t.boolean(False),
        t.number(0),
        t.boolean(True),
        t.boolean(both),
        t.values(),
        NONE,
    ]
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
    made.call(
        "aten::_cudnn_rnn_backward",
        [given, listed, t.integer(4), buffer, hx, cx, results[0], made.given(grad), NONE, NONE, *form, reserve, mask],
        [*grads, t.values(*parts)],
    )
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
    gates, hidden, cx, b1, b2, gh, gc = (
        tensor(3, 16),
        tensor(3, 16),
        tensor(3, 4),
        tensor(16),
        tensor(16),
        torch.randn(3, 4),
        torch.randn(3, 4),
    )
    i, f, c, o = (gates + hidden + (b1 + b2 if biased else 0)).chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * c.tanh()
    hy = o.sigmoid() * cy.tanh()
    torch.autograd.backward([hy, cy], [gh, gc])
    made = Made()
    old, new_h, new_c, workspace = made.given(cx), made.result(hy), made.result(cy), made.result(gates)
    made.call(
        "aten::_thnn_fused_lstm_cell",
        [made.given(gates), made.given(hidden), old, *(made.given(b) if biased else NONE for b in (b1, b2))],
        [new_h, new_c, workspace],
    )
    of = [made.result(gates), made.result(cx), made.result(b1) if biased else UNDEFINED]
    made.call(
        "aten::_thnn_fused_lstm_cell_backward_impl",
        [made.given(gh), made.given(gc), old, new_c, workspace, t.boolean(biased)],
        of,
    )
    made.outcome(new_h, new_c, *of[:2], *of[2 : 2 + biased])
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
    made.call(
        "aten::_thnn_fused_gru_cell",
        [made.given(x), made.given(h), made.given(hx), *(made.given(b) if biased else NONE for b in (c1, c2))],
        [out, workspace],
    )
    of = [
        made.result(x),
        made.result(h),
        made.result(hx),
        *((made.result(c1), made.result(c2)) if biased else (UNDEFINED, UNDEFINED)),
    ]
    made.call("aten::_thnn_fused_gru_cell_backward", [made.given(gh), workspace, t.boolean(biased)], of)
    made.outcome(out, *(of if biased else of[:3]))
    for a, b in zip(
        made.play(tmp_path)[0], (y, x.grad, h.grad, hx.grad, *([c1.grad, c2.grad] if biased else [])), strict=True
    ):
        close(a, b)


def test_batch_norm_convolution_and_softmax_of_cuda(tmp_path):
    torch.manual_seed(2)
    x, w, b, grad = (
        torch.randn(4, 3, 5, 5, requires_grad=True),
        *(torch.randn(3, requires_grad=True) for _ in range(2)),
        torch.randn(4, 3, 5, 5),
    )
    mean, var = torch.zeros(3), torch.ones(3)
    made = Made()
    running = [made.given(mean), made.given(var)]
    y = F.batch_norm(x, mean, var, w, b, training=True, momentum=0.1, eps=1e-5)
    y.backward(grad)
    args = [made.given(x), made.given(w), made.given(b)]
    results = [made.result(y), made.result(mean), made.result(var), made.result(torch.empty(64, dtype=torch.uint8))]
    made.call("aten::cudnn_batch_norm", [*args, *running, t.boolean(True), t.number(0.1), t.number(1e-5)], results)
    grads = [made.result(x), made.result(w), made.result(b)]
    made.call(
        "aten::cudnn_batch_norm_backward",
        [args[0], made.given(grad), args[1], *running, *results[1:3], t.number(1e-5), results[3]],
        grads,
    )
    kernel = torch.randn(2, 3, 3, 3)
    convolved = F.conv2d(x, kernel, stride=2, padding=1)
    places = made.result(convolved)
    made.call(
        "aten::cudnn_convolution",
        [
            args[0],
            made.given(kernel),
            *(t.values(*[t.integer(n)] * 2) for n in (1, 2, 1)),
            t.integer(1),
            *[t.boolean(False)] * 3,
        ],
        [places],
    )
    half = torch.randn(3, 5).half()
    soft = made.result(half.float())
    made.call("aten::_log_softmax", [made.given(half), t.integer(1), t.boolean(True)], [soft])
    back = made.result(half)
    made.call(
        "aten::_log_softmax_backward_data", [made.given(torch.ones(3, 5)), soft, t.integer(1), t.integer(5)], [back]
    )
    made.outcome(results[0], *running, *grads, places, soft, back)
    found, said = made.play(tmp_path)
    expected = half.float().log_softmax(1)
    for a, b in zip(
        found, (y, mean, var, x.grad, w.grad, b.grad, convolved, expected, (1 - 5 * expected.exp()).half()), strict=True
    ):
        close(a.float(), b.float(), 1e-2 if a.dtype == torch.float16 else 1e-5)


@pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_fused_rms_norm_backward"), reason="this torch does not have the operator"
)
def test_rms_norm_transposed_convolution_and_a_masked_product(tmp_path):
    torch.manual_seed(4)
    x, w, grad = torch.randn(3, 4, 6, requires_grad=True), torch.randn(6, requires_grad=True), torch.randn(3, 4, 6)
    F.rms_norm(x, [6], w, 1e-5).backward(grad)
    rstd = (x.detach().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    made = Made()
    of = [made.result(x), made.result(w)]
    made.call(
        "aten::_fused_rms_norm_backward",
        [
            made.given(grad),
            made.given(x),
            t.values(t.integer(6)),
            made.given(rstd),
            made.given(w),
            t.values(*[t.boolean(True)] * 2),
        ],
        of,
    )
    image, kernel = torch.randn(2, 3, 4, 4), torch.randn(3, 2, 3, 3)
    wide = F.conv_transpose2d(image, kernel, stride=2, padding=1, output_padding=1)
    places = made.result(wide)
    pairs = [t.values(*[t.integer(n)] * 2) for n in (1, 1, 2, 1)]
    made.call(
        "aten::cudnn_convolution_transpose",
        [made.given(image), made.given(kernel), *pairs, t.integer(1), *[t.boolean(False)] * 3],
        [places],
    )
    mask = torch.tensor([1, 0, 1], dtype=torch.uint8)
    product = made.result(torch.empty(3))
    made.call(
        "aten::_masked_scale", [made.given(torch.tensor([1.0, 2.0, 3.0])), made.given(mask), t.number(2)], [product]
    )
    made.outcome(*of, places, product)
    for a, b in zip(made.play(tmp_path)[0], (x.grad, w.grad, wide, torch.tensor([2.0, 0.0, 6.0])), strict=True):
        close(a, b)


def test_cuda_operators_in_other_dtypes_use_plain_operations(tmp_path):
    q, k, v, _ = attention()
    made = Made()
    out, sums, seed = (
        made.result(shuffled(q)),
        made.result(torch.empty(2, 4, 5)),
        made.result(torch.empty((), dtype=torch.int64)),
    )
    made.call(
        "aten::_scaled_dot_product_flash_attention",
        [*(made.given(x) for x in (q, k, v)), t.number(0), *[t.boolean(False)] * 2, NONE],
        [out, sums, UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), seed, UNDEFINED, UNDEFINED],
    )
    made.outcome(out)
    (tmp_path / "a.tape").write_bytes(made.bytes())
    code, said, err, _ = _native.replay_command(
        ["--dtype", "float64", "--save-tensors", str(tmp_path / "o.safetensors"), str(tmp_path / "a.tape")]
    )
    assert code == 0 and "computed as recorded" not in said, said + err
    (found,) = safetensors.torch.load_file(tmp_path / "o.safetensors").values()
    assert found.dtype == torch.float64
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
