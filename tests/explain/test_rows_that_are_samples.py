"""Rows of a birth that are those of the batch, and rows that are not: of weights, features, masks and flat gradients."""

import textwrap

import pytest

import helpers
from finitude.report import samples


def test_a_vector_of_features_has_no_rows(tmp_path):
    result = helpers.training(
        tmp_path,
        """
        for x in batches:
            opt.zero_grad()
            (model(x).pow(2).mean() + x[:1].var(0).sum()).backward()
            opt.step()
    """,
        "--on-alarm",
        "stop",
    )
    birth = result.alarms[0]["births"][0]
    assert birth["rows"] == [] and "rows_in" not in birth and "rows_of" not in birth, result.text()


# An adapter is trained on a frozen backbone. No optimizer owns the table of the embedding, and row 0 of it is padding:
# not a sample.
FROZEN = """
import torch
from torch import nn

torch.manual_seed(0)
body = nn.ModuleDict({"table": nn.Embedding(12, 8, padding_idx=0), "head": nn.Linear(8, 12)}).requires_grad_(False)
down, up = nn.Parameter(torch.randn(8, 2) / 8), nn.Parameter(torch.zeros(2, 8))
optimizer = torch.optim.AdamW([down, up], lr=1e-3)
for step in range(5):
    tokens = torch.randint(1, 12, (4, 6))
    if step == 3:
        tokens[2, 3] = 0
    x = body["table"](tokens)
    x = x / x.norm(dim=-1, keepdim=True)  # birth
    loss = nn.functional.cross_entropy(body["head"](x + x @ down @ up).transpose(1, 2), tokens.clamp(min=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("level", ["gate", "tape"])
def test_rows_of_untrained_weights_are_not_samples(tmp_path, level):
    birth = helpers.run(tmp_path, FROZEN, "--level", level).the_alarm()["births"][0]
    assert "# birth" in birth["source"] and birth["rows"] == [2], birth


def test_rows_of_first_step_weights_are_not_samples(tmp_path):
    """Where the first step fails, its window holds the making of the model too."""
    birth = helpers.run(tmp_path, FROZEN.replace("step == 3", "step == 0")).the_alarm()["births"][0]
    assert "# birth" in birth["source"] and birth["rows"] == [2], birth


def test_features_matching_batch_size_are_not_samples(tmp_path):
    """Eight features first, eight samples beside them: row 2 of what is born is a feature, and no sample is tried for
    it."""
    body = """
        data = torch.rand(40, 8) + 0.5
        data[19, 2] = 0
        wide = torch.nn.Linear(8, 3)
        opt = torch.optim.SGD(wide.parameters(), lr=0.01)
        for index in torch.arange(40).split(8):
            opt.zero_grad()
            logs = torch.log(data[index].t().contiguous())
            wide(logs.t()).pow(2).mean().backward()
            opt.step()
    """
    result = helpers.training(tmp_path, body, "--on-alarm", "stop")
    birth = result.the_alarm()["births"][0]
    assert (birth["rows"], birth["rows_in"], birth.get("samples")) == ([2], "output", None), result.text()
    assert any("sample 19 of 40" in e["name"] for e in result.the_alarm()["cause"]["experiments"])


def test_rows_of_previously_bad_weight_are_not_samples():
    alarm = {
        "micro_batch": 0,
        "cause": {"experiments": []},
        "births": [{"phase": phase, "rows": [2], "outputs": [{"shape": [4]}]} for phase in ("state", "forward")],
    }
    samples.name(alarm, {"samples": [[7, 5, 9, 8]]})
    assert [b.get("samples") for b in alarm["births"]] == [None, [9]]


MASKED = """
    for step in range(6):
        data = torch.randn(6, 4)
        mask = torch.ones(6, 3, dtype=torch.bool)
        mask[3, 1] = mask[5, 0] = False
        if step == 3:
            mask[2] = False
        opt.zero_grad()
        s = model(data).masked_fill(~mask, -torch.inf)
        LOSS
        opt.step()
"""


@pytest.mark.parametrize(
    ("loss", "op", "more"),
    [
        (
            "m = s.max(dim=1, keepdim=True).values\n    ((s - m).exp().sum(1).log() + m.squeeze(1)).mean().backward()",
            "aten::sub",
            2,
        ),
        ("(-s.log_softmax(1)[torch.arange(6), 2]).mean().backward()", "aten::_log_softmax", 2),
    ],
)
def test_rows_of_a_mask_are_not_guilty(tmp_path, loss, op, more):
    """Rows 3 and 5 hold an infinity that is meant, before and after."""
    body = "model = torch.nn.Linear(4, 3)\nopt = torch.optim.SGD(model.parameters(), lr=0.01)\n" + textwrap.dedent(
        MASKED
    ).replace("LOSS", loss)
    result = helpers.training(tmp_path, body, "--on-alarm", "warn")
    birth, cause = result.the_alarm()["births"][0], result.the_alarm()["cause"]
    assert (birth["op"], birth["rows"]) == (op, [2]), result.text()
    assert birth["outputs"][0]["neg_inf"] == more and "x NaN at row 2 " in result.err + " "
    (left_out,) = [e for e in cause["experiments"] if e["name"] == "row 2 removed"]
    assert left_out["confirms"] and left_out["outcome"] == "no NaN"


@pytest.mark.parametrize(
    "pairs", ["torch.cat([x, y[torch.randperm(64)]], 1)", "x + y.index_select(0, torch.randperm(64))"]
)
def test_rows_of_a_permutation_are_not_samples(tmp_path, pairs):
    """Pairs of a sample with that of another one, as estimators of mutual information and mixup make them: the row that
    fails is not that of the sample that makes it fail."""
    body = f"""
        opt = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.01)
        (scale,) = opt.param_groups[0]["params"]
        for step in range(5):
            x, y = torch.rand(64, 1), torch.rand(64, 1)
            if step == 3:
                y[50] = 4000.0
            loss = torch.log(torch.exp(({pairs}).sum(1) * scale).mean())
            opt.zero_grad()
            loss.backward()
            opt.step()
    """
    alarm = helpers.training(tmp_path, body, "--on-alarm", "stop").the_alarm()
    assert alarm["cause"]["class"] == "exp-overflow", alarm["cause"]
    (row,) = alarm["births"][0]["rows"]
    names = " ".join(e["name"] for e in alarm["cause"]["experiments"])
    assert " 50 of 64" in names and (row == 50 or f" {row} of 64" not in names), names
    assert f"sample {row} of" not in alarm["cause"]["text"] or row == 50, alarm["cause"]


def test_vector_written_into_one_row_is_no_batch(tmp_path):
    """Its four numbers explain the failure as well: they are the features of row 4."""
    body = """
        model = torch.nn.Linear(4, 2)
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        data, target = torch.randn(60, 4), torch.randn(60)
        spike = torch.tensor([1.0, -1.0, 1.0, -1.0]) * 5000
        with torch.no_grad():
            spike = spike if model(spike)[1] < 0 else -spike
        for step in range(5):
            i = torch.randint(0, 60, (12,))
            x, y = data[i].clone(), target[i]
            if step == 3:
                x[4] = spike
            mu, r = model(x).chunk(2, -1)
            loss = ((y[:, None] - mu) ** 2 / torch.nn.functional.softplus(r)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    """
    result = helpers.training(tmp_path, body, "--on-alarm", "stop")
    alarm = result.the_alarm()
    birth = alarm["births"][0]
    assert (birth["rows"], birth["rows_in"]) == ([4], "output") and "rows_of" not in birth, result.text()
    assert "of the batch" not in result.err
    assert [e for e in alarm["cause"]["experiments"] if " of 4 of an input replaced by a copy of row " in e["name"]], (
        result.text()
    )


SAMPLES = """
    import numpy
    model = torch.nn.Linear(6, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def sample(bad):
        a = numpy.random.default_rng(0).random(6).astype(numpy.float32)
        if bad:
            a[:] = 0.7
        with numpy.errstate(all="ignore"):
            return torch.from_numpy((a - a.min()) / (a.max() - a.min()))

    def stream():
        for step in range(6):
            yield [sample(step == 4 and k in BAD) for k in range(8)]

    for parts in stream():
        opt.zero_grad()
        model(MADE).pow(2).mean().backward()
        opt.step()
"""


@pytest.mark.parametrize("made", ["torch.stack(parts)", "torch.cat([p[None] for p in parts])"])
@pytest.mark.parametrize("bad", [[2], [2, 7]])
def test_sample_is_named_by_its_stacked_row(tmp_path, made, bad):
    """Not a row for each of its six numbers."""
    result = helpers.training(
        tmp_path, textwrap.dedent(SAMPLES).replace("BAD", str(bad)).replace("MADE", made), "--on-alarm", "stop"
    )
    alarm = result.the_alarm()
    births = alarm["births"]
    assert [birth["rows"] for birth in births] == [[row] for row in bad], result.text()
    assert births[0]["rows_of"] == 8 and births[0]["rows_in"] == "batch" and births[0]["phase"] == "data"
    assert "at row 2 of the batch" in alarm["cause"]["text"] and "NaN at row" not in result.err
    assert "neither a tensor nor a number" not in result.err


def test_elements_of_a_flat_gradient_are_not_rows(tmp_path):
    body = """
        for i, x in enumerate(batches):
            opt.zero_grad()
            model(x).mean().backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            flat = flat / ((flat * (i != 3)).norm() ** 2)
            at = 0
            for p in model.parameters():
                p.grad = flat[at:at + p.numel()].view_as(p).clone()
                at += p.numel()
            opt.step()
    """
    result = helpers.training(tmp_path, body, "--on-alarm", "stop")
    birth = result.the_alarm()["births"][0]
    assert birth["op"] == "aten::div" and birth["rows"] == [] and "rows_in" not in birth, result.text()


# Tables with as many rows as the batch has samples, beside a loader: what is bad in them is in no sample.
TABLES = """
import torch
from torch import nn
torch.manual_seed(0)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        return torch.randn(4, generator=torch.Generator().manual_seed(i)), i % 8

encode = nn.Linear(4, 8)
positions = torch.arange(8.0).unsqueeze(1) * torch.ones(8, 4)
opt = torch.optim.SGD(encode.parameters(), lr=0.01)
for step, (x, y) in enumerate(torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)):
    bad = step == 3
    BODY
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

TABLE = {
    "positions": "loss = (encode(x) @ (1 / (positions - (6 if bad else -1)))).pow(2).mean()",
    "an identity": "t = torch.eye(8) + 0.1; t[4] -= 0.1 * bad; loss = -(t.log() * encode(x).softmax(-1)[y]).sum(-1).mean()",
}


@pytest.mark.parametrize("body", TABLE.values(), ids=TABLE)
def test_rows_of_a_table_are_not_samples(tmp_path, body):
    result = helpers.run(tmp_path, TABLES.replace("BODY", body), "--on-alarm", "stop")
    alarm = result.the_alarm()
    assert len(alarm["births"][0]["rows"]) == 1 and "samples" not in alarm["births"][0], result.text()
    assert "of the data set" not in result.err and "sample" not in alarm["cause"]["text"], result.text()
    assert not any("samples" in e for e in alarm["cause"]["experiments"])


@pytest.mark.parametrize("with_noise", ["x", "x + 0 * torch.randn(8, 4)", "x * torch.rand(8, 1).clamp(min=0.5)"])
def test_rows_of_the_batch_beside_tables_are_samples(tmp_path, with_noise):
    body = f"x[6] *= not bad; z = {with_noise}; loss = encode(z / z.norm(dim=1, keepdim=True) + positions).mean()"
    result = helpers.run(tmp_path, TABLES.replace("BODY", body), "--on-alarm", "stop")
    birth = result.the_alarm()["births"][0]
    assert birth["rows"] == [6] and len(birth["samples"]) == 1, result.text()
