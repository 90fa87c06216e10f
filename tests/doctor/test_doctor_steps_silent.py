"""Twins of the programs of test_doctor_*_in_depth.py: nearly the same, and as it is meant."""

import textwrap

import pytest

from doctor_support import TRAINING, examine, found

# check, options, body: the check must find nothing at all, not even a note.
SILENT = {
    "tf32 by its new names only": (
        "P2",
        (),
        """
        setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
        setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16")
        for _ in range(3):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        """,
    ),
    "tf32 by its old names only": (
        "P2",
        (),
        """
        torch.set_float32_matmul_precision("high")
        for _ in range(3):
            opt.zero_grad()
            with torch.backends.cudnn.flags(benchmark=False):
                F.cross_entropy(model(x), y).backward()
            opt.step()
        """,
    ),
    "a step inside a scaler with two optimizers": (
        "P7",
        (),
        """
        other = nn.Linear(8, 1)
        opt2 = torch.optim.SGD(other.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            opt.zero_grad(), opt2.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(opt)
            other(x).mean().backward()
            opt2.step()
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "a scale of 1": (
        "P7",
        (),
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=100)
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            vars(nn.utils)["clip_grad_norm_"](model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "anomaly mode for one step": (
        "P9",
        (),
        """
        for i in range(3):
            torch.autograd.set_detect_anomaly(i == 0)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        """,
    ),
    "a default device": (
        "P9",
        (),
        """
        torch.set_default_device("cpu")
        for i in range(3):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        """,
    ),
    "a scale that is found": (
        "P10",
        (),
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 40)
        for _ in range(40):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "soft targets and whole batches": (
        "P11",
        (),
        """
        for a, b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True):
            opt.zero_grad()
            (F.binary_cross_entropy_with_logits(model(a), F.one_hot(b, 4) * 0.9 + 0.025) + F.cross_entropy(model(a), b)).backward()
            opt.step()
        """,
    ),
    "a mask given to a model": (
        "P11",
        (),
        """
        mask = torch.ones(16, 16).tril()
        for _ in range(3):
            opt.zero_grad()
            F.cross_entropy(model(x) + nn.Identity()(mask).sum() * 0, y).backward()
            opt.step()
        """,
    ),
    "a spike that is clipped": (
        "P13",
        ("--steps", "25"),
        """
        for i in range(30):
            opt.zero_grad()
            (F.cross_entropy(model(x), y) * (1e3 if i == 10 else 1)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
        """,
    ),
    "an overflow that a scaler leaves out": (
        "P13",
        (),
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 100)
        for _ in range(12):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y) * 1e12).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "a bad gradient that is left out": (
        "P14",
        (),
        """
        for i in range(5):
            opt.zero_grad()
            (F.cross_entropy(model(x), y) * (NAN if i == 1 else 1)).backward()
            if all(p.grad.isfinite().all() for p in model.parameters()):
                opt.step()
        """,
    ),
    "a bad gradient at a fused optimizer that is reported": (
        "P14",
        (),
        """
        opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        scaler = torch.amp.GradScaler("cpu")
        for i in range(5):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y) * (INF if i == 0 else 1)).backward()
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "a bad gradient that a hook mends": (
        "P14",
        (),
        """
        def mend(optimizer, args, kwargs):
            for p in model.parameters():
                p.grad.nan_to_num_(0, 0, 0)
        opt.register_step_pre_hook(mend)
        for i in range(5):
            opt.zero_grad()
            (F.cross_entropy(model(x), y) * (NAN if i == 1 else 1)).backward()
            opt.step()
        """,
    ),
    "logits that stay": (
        "P15",
        ("--steps", "20"),
        """
        for _ in range(30):
            opt.zero_grad()
            F.cross_entropy(model(x) * 5, y).backward()
            opt.step()
        """,
    ),
    "an open mask": (
        "P16",
        (),
        """
        q = nn.Linear(8, 8)
        opt = torch.optim.SGD(q.parameters(), lr=0.01)
        for _ in range(3):
            h = q(x).view(2, 2, 4, 8)
            F.scaled_dot_product_attention(h, h, h, attn_mask=torch.ones(4, 4).tril().bool()).square().mean().backward()
            opt.step()
        """,
    ),
    "grouped queries": (
        "P16",
        (),
        """
        q, k = nn.Linear(8, 32), nn.Linear(8, 8)
        opt = torch.optim.SGD([*q.parameters(), *k.parameters()], lr=0.01)
        for _ in range(3):
            a, b = q(x).view(2, 8, 4, 8).transpose(1, 2), k(x).view(2, 8, 2, 4).transpose(1, 2)
            F.scaled_dot_product_attention(a[..., :4], b, b, enable_gqa=True).square().mean().backward()
            opt.step()
        """,
    ),
    "gradients that stay": (
        "P18",
        ("--steps", "20"),
        """
        for _ in range(30):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        """,
    ),
}


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
def test_silent_on(tmp_path, case):
    check, options, body = case
    code, document, err = examine(tmp_path, TRAINING + textwrap.dedent(body), *options)
    assert not found(document, check), document["findings"]
    assert not document["trouble"] and document["looked_at"] == ["source", "steps"], err
