"""What a finding of the first steps has as evidence: samples, rows, calls, layers."""

import textwrap

import pytest

from doctor_support import TRAINING, examine, found


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
