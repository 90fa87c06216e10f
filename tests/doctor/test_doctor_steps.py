"""Checks of the first steps: programs that run, in which each one speaks, at its line."""

import textwrap

import pytest
import torch

from doctor_support import TRAINING, examine, found, line_of

SPEAKS = {
    "float16 on the CPU": (
        "P1",
        "note",
        """
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(9):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):  # here
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "tf32 that torch cannot report": (
        "P2",
        "warn",
        """
        getattr(torch, "set_float32_matmul_precision")("high")
        setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee")  # here
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            opt.step()
        """,
    ),
    "backward through a helper inside autocast": (
        "P4",
        "warn",
        """
        def update(loss):
            loss.backward()  # here
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                update(F.cross_entropy(model(x), y))
            opt.step()
        """,
    ),
    "float16 weights": (
        "P4",
        "bad",
        """
        model.half()
        for _ in range(3):
            F.cross_entropy(model(x.half()).float(), y).backward()
            opt.step()  # here
        """,
    ),
    "a thread without autocast": (
        "P4",
        "warn",
        """
        import threading
        with torch.autocast("cpu", dtype=torch.bfloat16):
            t = threading.Thread(target=lambda: model(x))  # here
            t.start()
            t.join()
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        """,
    ),
    "float16 without a scale": (
        "P5",
        "bad",
        """
        def forward():
            with torch.autocast("cpu", dtype=getattr(torch, "float16")):  # here
                return F.cross_entropy(model(x), y)
        for _ in range(3):
            (forward() * 1e-4).backward()
            opt.step()
        """,
    ),
    "a scale for bfloat16": (
        "P6",
        "note",
        """
        scaler, dtype = torch.amp.GradScaler("cpu"), getattr(torch, "bfloat16")
        for _ in range(3):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()  # here
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "clipped by a helper while scaled": (
        "P7",
        "bad",
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        def clip():
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            clip()
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "unscaled twice": (
        "P7",
        "bad",
        """
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(opt)
        scaler.unscale_(opt)  # here
        scaler.step(opt)
        scaler.update()
        """,
    ),
    "a gradient that is not finite": (
        "P8",
        "bad",
        """
        for _ in range(3):
            (model(x).sum() * 0).sqrt().backward()
            opt.step()  # here
        """,
    ),
    "anomaly mode by an option": (
        "P9",
        "warn",
        """
        if len(opt.param_groups) == 1:
            torch.autograd.set_detect_anomaly(True)
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            opt.step()
        """,
    ),
    "an activation near the end of float16": (
        "P10",
        "warn",
        """
        with torch.no_grad():
            model[0].weight.mul_(1e-3), model[0].bias.fill_(48000.0)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x) / 1e6, y)  # here
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "labels from 1": (
        "P11",
        "bad",
        """
        loss = F.cross_entropy(model(x), y + 1)  # here
        loss.backward()
        opt.step()
        """,
    ),
    "labels all ignored": (
        "P11",
        "bad",
        """
        criterion = nn.CrossEntropyLoss()
        criterion(model(x), torch.full((16,), -100)).backward()  # here
        opt.step()
        """,
    ),
    "NaN in a batch of a loader": (
        "P11",
        "bad",
        """
        x[5, 2] = NAN
        data = torch.utils.data.TensorDataset(x, y)
        for a, b in torch.utils.data.DataLoader(data, batch_size=8):
            opt.zero_grad()
            F.mse_loss(model(a), a[:, :4]).backward()
            opt.step()
        """,
    ),
    "an update larger than the weights": (
        "P12",
        "warn",
        """
        opt = torch.optim.Adam(model.parameters(), lr=5.0)
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            opt.step()  # here
        """,
    ),
    "a loss that explodes": (
        "P12",
        "bad",
        """
        opt = torch.optim.SGD(model.parameters(), lr=50.0)
        for _ in range(3):
            F.mse_loss(model(x), x[:, :4]).backward()
            opt.step()  # here
        """,
    ),
    "a norm that overflows": (
        "P13",
        "bad",
        """
        w = nn.Parameter(torch.ones(4))
        opt = torch.optim.SGD([w], lr=1e-30)
        for _ in range(3):
            opt.zero_grad()
            (w * 1e25).sum().backward()
            nn.utils.clip_grad_norm_([w], 1.0)  # here
            opt.step()
        """,
    ),
    "clipped after the step": (
        "P13",
        "warn",
        """
        for _ in range(3):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
        """,
    ),
    "a parameter that is NaN": (
        "P14",
        "bad",
        """
        with torch.no_grad():
            model[2].bias[1] = NAN
        for _ in range(3):
            (model[0](x)).square().mean().backward()
            opt.step()  # here
        """,
    ),
    "logits that only float32 bears": (
        "P15",
        "note",
        """
        for _ in range(3):
            F.cross_entropy(model(x) * 1000, y).backward()  # here
            opt.step()
        """,
    ),
    "attention that is not scaled": (
        "P16",
        "warn",
        """
        q = nn.Linear(8, 64)
        opt = torch.optim.SGD(q.parameters(), lr=1e-9)
        for _ in range(3):
            h = (q(x) * 30).view(1, 1, 16, 64)
            F.scaled_dot_product_attention(h, h, h).square().mean().backward()  # here
            opt.step()
        """,
    ),
    "attention by hand that is not scaled": (
        "P16",
        "warn",
        """
        q = nn.Linear(8, 64)
        opt = torch.optim.SGD(q.parameters(), lr=1e-9)
        for _ in range(3):
            h = (q(x) * 30).view(1, 16, 64)
            ((h @ h.transpose(1, 2)).softmax(-1) @ h).square().mean().backward()  # here
            opt.step()
        """,
    ),
    "activations that grow with depth": (
        "P17",
        "warn",
        """
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
        with torch.no_grad():
            for layer in model:
                layer.weight.normal_(0, 1)
        opt = torch.optim.SGD(model.parameters(), lr=1e-20)
        a = torch.randn(4, 64)
        for _ in range(3):
            (model(a) / 1e9).square().mean().backward()
            opt.step()
        """,
    ),
    "gradients that vanish with depth": (
        "P18",
        "warn",
        """
        model = nn.Sequential(*[m for _ in range(9) for m in (nn.Linear(16, 16), nn.Sigmoid())])
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        a = torch.randn(4, 16)
        for _ in range(3):
            model(a).square().mean().backward()
            opt.step()  # here
        """,
    ),
    "gradients that are all zero in two steps": (
        "P18",
        "note",
        """
        for _ in range(3):
            opt.zero_grad()
            (F.relu(model(x) - 1e6).sum() + 1).backward()
            opt.step()  # here
        """,
    ),
    "determinism that fills memory": (
        "P19",
        "note",
        """
        torch.use_deterministic_algorithms(True)
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            opt.step()
        """,
    ),
}


@pytest.mark.parametrize("case", SPEAKS.values(), ids=SPEAKS)
def test_speaks_of(tmp_path, case):
    check, verdict, body = case
    if "fp32_precision" in body and not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch does not have the setting")
    text = TRAINING.lstrip("\n") + textwrap.dedent(body)
    code, document, err = examine(tmp_path, text)
    findings = found(document, check)
    assert [f["verdict"] for f in findings] == [verdict], (document, err)
    assert findings[0]["seen_in"] == "steps" and not document["trouble"]
    if "# here" in text:
        assert findings[0]["line"] == line_of(text, "# here"), findings
    if verdict == "bad":
        assert code == 1
