"""Which samples of the batch make a step fail, where the rows of the birth are not those of the batch; and which
samples of the data set they are, where the sampler is known."""

import json
import pathlib

import pytest

import helpers

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


def test_a_fix_in_the_data_set_counts_every_bad_sample(tmp_path):
    text = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    x = torch.randn(256, 3)
    x[130:200, 1] = float("nan")
    net = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for (b,) in DataLoader(TensorDataset(x), batch_size=128):
        opt.zero_grad()
        net(b).pow(2).mean().backward()
        opt.step()
    """
    fix = helpers.run(tmp_path, text, "--on-alarm", "stop").the_alarm()["fix"]["text"]
    assert "of sample 130, and what is bad in 69 other samples, when" in fix and "drop those samples" in fix, fix
