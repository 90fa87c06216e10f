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


def test_two_runs_that_differ(tmp_path):
    body = """
        import os
        for _ in range(3):
            (F.cross_entropy(model(x), y) * (1 + int.from_bytes(os.urandom(4), "big") * 1e-12)).backward()
            opt.step()
        """
    _, document, _ = examine(tmp_path, TRAINING + textwrap.dedent(body), "--twice")
    (finding,) = found(document, "P19")
    assert (
        finding["verdict"] == "warn"
        and finding["evidence"]["reproducible"] is False
        and finding["evidence"]["first"] is None
    )


CLOCK = """
torch.library.define("doctor::clock", "(Tensor x) -> Tensor")

@torch.library.impl("doctor::clock", "CompositeExplicitAutograd")
def clock(a):
    return torch.full_like(a, int.from_bytes(os.urandom(3), "big"))
"""
TWICE = {
    "the data": (
        "a batch (batch.0)",
        "x = x + torch.tensor(list(os.urandom(16)))[:, None]\n"
        "data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)\n",
        "model(a)",
    ),
    "a layer": (
        "the output of 2 (Linear)",
        "data = [(x, y)] * 4\n",
        'model[2](model[1](model[0](a)) + int.from_bytes(os.urandom(4), "big") * 1e-8)',
    ),
}


@pytest.mark.parametrize("case", TWICE.values(), ids=TWICE)
def test_two_runs_report_what_differs_first(tmp_path, case):
    first, before, forward = case
    text = (
        "import os\n"
        + TRAINING.lstrip("\n")
        + before
        + f"for a, b in data:\n    F.cross_entropy({forward}, b).backward()\n    opt.step()\n"
    )
    _, document, _ = examine(tmp_path, text, "--twice")
    (finding,) = found(document, "P19")
    assert finding["verdict"] == "warn" and first in finding["text"] and first in finding["evidence"]["first"]


OPERATIONS = {
    "that draws": (
        "aten::bernoulli_",
        "draws random numbers",
        False,
        "torch.manual_seed(int.from_bytes(os.urandom(4), 'big'))\n",
        "F.dropout(model(x), 0.5)",
    ),
    "that is given other data": (
        "aten::addmm",
        "no operation made",
        False,
        "x.numpy()[3, 1] = os.urandom(1)[0] + 2.0\n",
        "model(x)",
    ),
    "that is given another number": (  # no sum: of logits moved by one number cross entropy may have the same bits
        "aten::mul",
        "given another number of the script: ",
        False,
        "",
        "model(x) * (1 + int.from_bytes(os.urandom(4), 'big') * 1e-9)",
    ),
    "another one": ("aten::tanh", "calls aten::relu", False, "", "(torch.tanh if first() else torch.relu)(model(x))"),
    # The clock stands for an operator without a fixed order: equal operands, another result.
    "by itself": (
        "doctor::clock",
        "differs for equal operands",
        False,
        CLOCK,
        "torch.ops.doctor.clock(model(x)) * model(x)",
    ),
    "in backward": (
        "doctor::clock",
        "differs for equal operands",
        True,
        CLOCK
        + """
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.doctor.clock(grad) * grad  # here
""",
        "Late.apply(model(x))",
    ),
}


@pytest.mark.parametrize("case", OPERATIONS.values(), ids=OPERATIONS)
def test_two_runs_name_the_first_operation_that_differs(tmp_path, case):
    op, how, in_backward, before, forward = case
    mark = tmp_path / "mark"
    text = (
        "import os\n"
        + TRAINING.lstrip("\n")
        + before
        + textwrap.dedent(f"""
        def first():
            try:
                os.mkdir({str(mark)!r})
                return True
            except FileExistsError:
                return False

        for _ in range(1):
            loss = F.cross_entropy({forward}, y)  # there
            loss.backward()
            opt.step()
        """)
    )
    _, document, _ = examine(tmp_path, text, "--twice")
    (finding,) = found(document, "P19")
    evidence = finding["evidence"]
    assert how in evidence["how"] and (" in backward" in finding["text"]) == in_backward, finding
    assert op == evidence["operation"], finding
    assert finding["line"] == line_of(text, "# here" if in_backward else "# there"), finding


def test_uninitialised_memory_is_no_difference(tmp_path):
    body = (
        "for _ in range(2):\n    held = torch.empty(4096).copy_(x.sum()) + torch.empty(64).uniform_().sum()\n"
        "    (F.cross_entropy(model(x), y) * held.mean()).backward()\n    opt.step()\n"
    )
    _, document, _ = examine(tmp_path, TRAINING + body, "--twice")
    (finding,) = found(document, "P19")
    assert finding["verdict"] == "note" and finding["evidence"]["reproducible"] is True, finding


def test_two_runs_that_are_the_same_say_so(tmp_path):
    _, document, _ = examine(
        tmp_path,
        TRAINING + "for _ in range(3):\n    F.cross_entropy(model(x), y).backward()\n    opt.step()\n",
        "--twice",
    )
    (finding,) = found(document, "P19")
    assert (
        finding["verdict"] == "note" and "same bits" in finding["text"] and finding["evidence"]["reproducible"] is True
    )
    assert finding["evidence"]["cudnn_benchmark"] is False


def test_clipping_in_every_step_shows_after_twenty(tmp_path):
    body = """
        for _ in range(100):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            opt.step()
        """
    _, document, _ = examine(tmp_path, TRAINING + textwrap.dedent(body), "--steps", "25")
    (finding,) = found(document, "P13")
    assert finding["verdict"] == "warn" and "25 of 25 steps" in finding["text"]
    assert (
        sum(finding["evidence"]["coefficients"].values()) == 25
        and finding["evidence"]["coefficients"]["below 0.01"] > 0
    )
    assert finding["evidence"]["top"][0]["name"] in ("0.weight", "0.bias", "2.weight", "2.bias")


EVIDENCE = {
    "the sample of a shuffled batch, with workers": (
        "P11",
        """
        x[5, 2] = NAN
        data = torch.utils.data.TensorDataset(x, y)
        for a, b in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=2):
            opt.zero_grad()
            F.cross_entropy(model(a), b).backward()
            opt.step()
        """,
        lambda e: e["samples"] == [5] and len(e["rows"]) == 1 and e["fingerprint"],
    ),
    "no sample where workers give batches in any order": (
        "P11",
        """
        x[5, 2] = NAN
        data = torch.utils.data.TensorDataset(x, y)
        for a, b in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, in_order=False):
            opt.zero_grad()
            F.cross_entropy(model(a), b).backward()
            opt.step()
        """,
        lambda e: e["samples"] == [] and e["rows"] == [5],
    ),
    "the rows of wrong labels": (
        "P11",
        """
        y[3], y[7] = 4, -1
        F.cross_entropy(model(x), y).backward()
        opt.step()
        """,
        lambda e: e["rows"] == [3, 7] and (e["min"], e["max"], e["classes"]) == (-1, 4, 4),
    ),
    "the order of the calls": (
        "P7",
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        """,
        lambda e: (
            [c.split()[0] for c in e["order"]] == ["scale", "backward", "clip"]
            and e["norm"] == pytest.approx(8 * e["norm_without_scale"])
        ),
    ),
    "heads": (
        "P16",
        """
        q = nn.Linear(8, 64)
        opt = torch.optim.SGD(q.parameters(), lr=1e-9)
        for _ in range(3):
            h = (q(x) * 30).view(1, 16, 4, 16).transpose(1, 2) * torch.tensor([1.0, 1.0, 9.0, 1.0]).view(1, 4, 1, 1)
            F.scaled_dot_product_attention(h, h, h).square().mean().backward()
            opt.step()
        """,
        lambda e: len(e["heads"]) == 4 and max(range(4), key=e["heads"].__getitem__) == 2,
    ),
    "the layer where the ratio breaks": (
        "P18",
        """
        model = nn.Sequential(*[m for i in range(9) for m in (nn.Linear(16, 16), nn.Sigmoid())])
        with torch.no_grad():
            model[8].weight.mul_(1e-3)
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            model(torch.randn(4, 16)).square().mean().backward()
            opt.step()
        """,
        lambda e: e["breaks_at"] == "8.weight" and len(e["profile"]) == 9,
    ),
    "sizes by depth": (
        "P17",
        """
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
        with torch.no_grad():
            for layer in model:
                layer.weight.normal_(0, 1)
        opt = torch.optim.SGD(model.parameters(), lr=1e-20)
        for _ in range(3):
            (model(torch.randn(4, 64)) / 1e9).square().mean().backward()
            opt.step()
        """,
        lambda e: (
            len(e["layers"]) == 8
            and all(v is not None for v in e["layers"][0].values())
            and e["layers"][0]["weight"] == pytest.approx(1, rel=0.1)
        ),
    ),
}


@pytest.mark.parametrize("case", EVIDENCE.values(), ids=EVIDENCE)
def test_evidence_contains_the_expected_facts(tmp_path, case):
    check, body, holds = case
    _, document, err = examine(tmp_path, TRAINING + textwrap.dedent(body))
    finding = [f for f in found(document, check) if f["seen_in"] == "steps"][0]
    assert holds(finding["evidence"]), finding
