"""Which samples of the batch make a step fail, where the rows of the birth are not those of the batch; and which
samples of the data set they are, where the sampler is known."""

import json
import pathlib
import textwrap

import pytest

import helpers
from finitude.report import samples

LOADER = """
import torch
from torch import nn

torch.manual_seed(0)
BAD = BADLY


class Series(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.randn(5, 4), 0 if i in BAD else 1 + i % 5, i % 2


MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Series(), batch_size=4, sampler=[(7 * i + 3) % 24 for i in range(24)])
for step, (x, length, label) in enumerate(loader):
    valid = torch.arange(5) < length[:, None]
    LOSS
    if step % EVERY == EVERY - 1:
        optimizer.step()
        optimizer.zero_grad()
"""

# The heads stand beside the batch in the first dimension of the softmax, and the bad sample is taken out by an index
# afterwards: with another sample in its place the loss would have other shapes.
ATTENTION = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x, padding):
        return self.out(self.attention(x, x, x, key_padding_mask=padding)[0].mean(1))


model = Reader()
"""
DROPPED = """used = length > 0
    loss = nn.functional.cross_entropy(model(x, ~valid)[used], label[used])
    loss.backward()"""

# A mean over time that no element takes part in: rows are those of the batch here.
MEAN = "model = nn.Linear(4, 1)\n"
AVERAGED = """score = (model(x).squeeze(-1) * valid).sum(1) / valid.sum(1)
    loss = score.sigmoid().sub(label).pow(2).mean()
    loss.backward()"""
# Rows are those of batch and time together.
FOLDED = """flat = torch.log(x.abs() * valid.any(1)[:, None, None]).reshape(-1, 4)
    loss = model(flat).tanh().pow(2).mean()
    loss.backward()"""


def alarm_of(folder, model, loss, bad, every=1, *options):
    script = (
        LOADER.replace("MODEL", model.strip()).replace("LOSS", loss).replace("BADLY", bad).replace("EVERY", str(every))
    )
    result = helpers.run(folder, script, *options)
    return result.the_alarm(), result


def loaded(alarm, folder):
    return json.loads(pathlib.Path(folder, alarm["capsule"], "capsule.json").read_text())["samples"]


def searched(alarm):
    return [e for e in alarm["cause"]["experiments"] if "rows_of" in e]


def test_folded_heads_are_mapped_to_samples_by_replacement(tmp_path):
    alarm, result = alarm_of(tmp_path, ATTENTION, DROPPED, "{9}")
    birth = alarm["births"][0]
    assert birth["op"] == "aten::_softmax" and birth["outputs"][0]["shape"][0] == 8
    assert birth["rows_of"] == 4 and birth["samples"] == [9], result.text()
    (samples,) = loaded(alarm, tmp_path)
    assert [samples[row] for row in birth["rows"]] == [9]
    assert birth["outputs"][0]["rows"] == [2 * birth["rows"][0], 2 * birth["rows"][0] + 1], (
        "those of the tensor stay with it"
    )
    (tried,) = searched(alarm)
    assert tried["samples"] == [9] and tried["name"].startswith("step up to the birth, sample "), tried
    shown = " ".join(result.err.split())
    assert f"row {birth['rows'][0]} of the batch = sample 9 of the data set" in shown
    assert "(sample 9 of the data set): what is born there is finite" in shown


def test_whole_step_experiment_identifies_samples_where_possible(tmp_path):
    alarm, result = alarm_of(tmp_path, MEAN, FOLDED, "{19, 9}")
    birth = alarm["births"][0]
    (tried,) = searched(alarm)
    assert tried["name"].startswith("whole step, sample") and tried["samples"] == birth["samples"], result.text()
    assert set(birth["samples"]) == {19, 9}


def test_experiment_names_samples_for_births_with_known_rows(tmp_path):
    alarm, result = alarm_of(tmp_path, MEAN, AVERAGED, "{9}")
    birth = alarm["births"][0]
    assert birth["samples"] == [9] and "rows_of" not in birth, result.text()
    (tried,) = searched(alarm)
    assert tried["samples"] == [9] and tried["name"].startswith("whole step, ")


@pytest.mark.parametrize("bad", ["{9}", "{2, 16, 23, 13}"])
def test_of_micro_batches_the_right_one_is_meant(tmp_path, bad):
    """Rows of all of them have the same numbers: the samples are those of the birth's batch."""
    alarm, result = alarm_of(tmp_path, ATTENTION, DROPPED, bad, 3)
    birth, batches = alarm["births"][0], loaded(alarm, tmp_path)
    assert len(batches) == 3 and alarm["sink"]["kind"] == "gradient"
    assert alarm["micro_batch"] == next(i for i, batch in enumerate(batches) if set(batch) & eval(bad)), "of the birth"
    batch = batches[alarm["micro_batch"]]
    assert birth["samples"] == [s for s in batch if s in eval(bad)], result.text()
    assert birth["samples"] == [batch[row] for row in birth["rows"]]


def test_memory_that_is_overwritten_in_part(tmp_path):
    """As it was handed out all its rows look bad; those that stay unwritten are the guilty ones."""
    written = """out = torch.empty_like(x)
    for row, n in enumerate(length.clamp(max=4).add(1).tolist() if step < 2 else length.tolist()):
        out[row, :5 if n else 0] = x[row, :5 if n else 0]
    loss = model(out).tanh().pow(2).mean()
    loss.backward()"""
    alarm, result = alarm_of(tmp_path, "torch.use_deterministic_algorithms(True)\n" + MEAN, written, "{2, 9, 23}")
    birth, (samples,) = alarm["births"][0], loaded(alarm, tmp_path)
    assert birth["phase"] == "memory" and birth["samples"], result.text()
    assert birth["samples"] == [s for s in samples if s in (2, 9, 23)]


def test_no_samples_without_a_sampler(tmp_path):
    bare = """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
data = torch.rand(4, 3, 6, 4) + 1
data[2, 1] = 0
for x in data:
    loss = layer(x.reshape(-1, 4).log()).tanh().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    result = helpers.run(tmp_path, bare)
    birth = result.the_alarm()["births"][0]
    assert (birth["rows"], birth["rows_of"], birth.get("samples")) == ([1], 3, None), result.text()
    assert "row 1 of the batch, which has 3" in " ".join(result.err.split())


# The program's own sampling: no loader reports what a batch is.
OUT_OF_ALL = """
data = torch.rand(40, 4) + 0.5
data[17] = 0.0
order = torch.randperm(40)
order = torch.cat([order[order != 17][:20], torch.tensor([17]), order[order != 17][20:]])
for index in order.split(8):
    opt.zero_grad()
    x = {take}
    {loss}
    loss.backward()
    opt.step()
"""
ROWS = "loss = (model(x).pow(2).sum(1) - x.sum(1).log()).mean()"


def guilty(folder, take, loss):
    script = OUT_OF_ALL.replace("{take}", take).replace("{loss}", loss)
    result = helpers.training(folder, script, "--on-alarm", "stop")
    return result.the_alarm()["births"][0], result


@pytest.mark.parametrize("take", ["data[index]", "data.index_select(0, index)"])
def test_batch_rows_are_mapped_to_data_set_samples(tmp_path, take):
    birth, result = guilty(tmp_path, take, ROWS)
    assert (birth["rows"], birth["rows_in"], birth["rows_of"], birth["samples"]) == ([4], "batch", 8, [17]), (
        result.text()
    )
    assert "row 4 of the batch = sample 17 of the data set" in " ".join(result.err.split())


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


ELEMENTS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
SETTING
net = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for part in DataLoader(TensorDataset(*data), batch_size=8):
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WITHIN = {
    "a token that nobody has counted": (
        "tokens = torch.randint(0, 9, (48, 7)); tokens[29, 4] = 9; data = [tokens]\n"
        "table, counts = torch.randn(10, 6), torch.tensor([3.0] * 9 + [0.0])",
        "loss = net(table[part[0]] / counts[part[0]][..., None]).pow(2).mean()",
        "only batch[0][4] replaced",
    ),
    "a column of a table": (
        "data = [torch.rand(48, 6) + 0.5, torch.rand(48, 2)]; data[0][29, 2] = 0",
        "loss = net(part[0].log()).mean() * part[1].mean()",
        "only batch[0][2] replaced",
    ),
    "the second tensor of the batch, of one number a sample": (
        "data = [torch.rand(48, 6), torch.rand(48) + 0.5]; data[1][29] = 0",
        "loss = (net(part[0]).squeeze(1) / part[1]).mean()",
        "only batch[1] replaced",
    ),
}


@pytest.mark.parametrize("setting, loss, said", WITHIN.values(), ids=WITHIN)
def test_guilty_elements_of_a_sample_are_reported(tmp_path, setting, loss, said):
    got = helpers.run(tmp_path, ELEMENTS.replace("SETTING", setting).replace("LOSS", loss))
    alarm = got.the_alarm()
    tried = [e for e in alarm["cause"]["experiments"] if e["name"].startswith("whole step, of sample 5")]
    assert tried and said in tried[0]["name"] and tried[0]["outcome"] == "loss and gradients finite", alarm["cause"]
    assert "whole steps took" in " ".join(got.err.split())


def test_wholly_bad_sample_reports_no_single_element(tmp_path):
    setting = "data = [torch.rand(48, 6)]; data[0][29] = 0"
    alarm = helpers.run(
        tmp_path,
        ELEMENTS.replace("SETTING", setting).replace(
            "LOSS", "loss = net(part[0] / part[0].sum(1, keepdim=True)).mean()"
        ),
    ).the_alarm()
    names = [e["name"] for e in alarm["cause"]["experiments"]]
    assert any("sample 5 of 8 replaced" in name for name in names) and not any(
        "of sample" in name and "only" in name for name in names
    ), names


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


NESTED = """
import torch

torch.manual_seed(0)


class Numbers(torch.utils.data.Dataset):
    def __init__(self, inner=None):
        self.inner = inner

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if self.inner is not None:  # a sample is made with a whole pass over another loader of the same class
            assert sum(len(x) for x, in self.inner) == 6
        return torch.full((3,), -1.0 if i == 9 and self.inner is not None else 1.0 + i)


inner = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(6)), batch_size=4)
loader = torch.utils.data.DataLoader(Numbers(inner), batch_size=4, sampler=[(7 * i + 3) % 24 for i in range(24)], num_workers=WORKERS)
layer = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
batches = iter(loader)
for x in batches:
    optimizer.zero_grad()
    layer(x.log()).mean().backward()
    optimizer.step()
    assert WORKERS or not [name for name in vars(batches) if 'finitude' in name]
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_data_set_with_nested_loader_names_the_sample(tmp_path, workers):
    alarm = helpers.run(tmp_path, NESTED.replace("WORKERS", str(workers))).the_alarm()
    assert alarm["births"][0]["samples"] == [9] and 9 in loaded(alarm, tmp_path)[0]


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
