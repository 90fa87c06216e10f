"""Which sample a row is where the program's own collate function sorts the samples, draws, or leaves their order
alone."""

import pytest

import helpers

TRAINING = """
import random
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.asked = 0
        self.x = [torch.rand(2 + (5 * i) % 7, 3, generator=g) for i in range(64)]
        self.y = torch.rand(64, generator=g) + 0.5
        self.y[42] = BAD

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.asked += 1
        return self.x[i]DRAWN, self.y[i]


def longest_first(rows):
    return sorted(rows, key=lambda r: -len(r[0]))


def as_it_is(rows):
    return rows


def by_chance(rows):
    return random.sample(rows, len(rows))


def together(rows, order=ORDER):
    rows = order(rows)
    return {"x": pad_sequence([x for x, _ in rows], batch_first=True), "n": torch.tensor([len(x) for x, _ in rows]),
            "y": torch.stack([y for _, y in rows])}


if __name__ == "__main__":
    torch.manual_seed(0)
    random.seed(0)
    rnn, out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)
    opt = torch.optim.SGD([*rnn.parameters(), *out.parameters()], lr=0.01)
    data = Sequences()
    for b in DataLoader(data, 8, collate_fn=together, num_workers=WORKERS):
        _, h = rnn(pack_padded_sequence(b["x"], b["n"], batch_first=True, enforce_sorted=False))
        loss = (out(h[-1]).squeeze(1) - TARGET).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("asked", data.asked)
"""


def rows_of(folder, order, bad="0", target='torch.log(b["y"])', drawn="", workers=0):
    code = TRAINING.replace("ORDER", order).replace("BAD", bad).replace("TARGET", target).replace("DRAWN", drawn)
    got = helpers.run(folder, code.replace("WORKERS", str(workers)), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert got.code == 0 and alarm["step"] == 5 and alarm["rerun_by"] == "rewind", got.text()
    assert f"asked {0 if workers else 64}\n" == got.out, "what was asked of the data set once more is taken back"
    return alarm


@pytest.mark.parametrize("workers", [0, 2])
def test_sorted_by_length(tmp_path, workers):
    alarm = rows_of(tmp_path, "longest_first", workers=workers)
    assert alarm["births"][0]["rows"] == [7] and alarm["births"][0]["samples"] == [42], alarm["births"][0]


def test_sorted_and_bad_as_it_is_stored(tmp_path):
    alarm = rows_of(tmp_path, "longest_first", bad="float('nan')", target='b["y"]')
    birth = alarm["births"][0]
    assert birth["phase"] == "data" and birth["rows"] == [7] and birth["samples"] == [42], birth
    assert birth["datum"]["how"] == "stored" and birth["datum"]["sample"] == 42, birth["datum"]


def test_an_order_that_is_kept(tmp_path):
    assert rows_of(tmp_path, "as_it_is")["births"][0]["samples"] == [42]


def test_kept_order_of_randomly_augmented_samples_is_found(tmp_path):
    assert rows_of(tmp_path, "as_it_is", drawn=" + torch.randn(1)")["births"][0]["samples"] == [42]


@pytest.mark.parametrize("drawn", ["", " + torch.randn(1)"])
def test_sorted_by_chance(tmp_path, drawn):
    """A sample is known again by its values, and else not named."""
    birth = rows_of(tmp_path, "by_chance", drawn=drawn)["births"][0]
    assert birth.get("samples") == (None if drawn else [42]), birth


def test_sorted_samples_that_draw(tmp_path):
    assert "samples" not in rows_of(tmp_path, "longest_first", drawn=" + torch.randn(1)")["births"][0]


SHUFFLED = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)
data = torch.randn(64, 6)
data[42] = 0
net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Tanh())
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(data), 8):
    order = ORDER
    a, b = net(x), net(TAKEN)
    if bool((x == 0).all(1).any()):
        b = b / b.norm(dim=1, keepdim=True)
    loss = (a * b).sum(1).mean() + a.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("options", [[], ["--experiments", "0"]], ids=["tried", "not tried"])
@pytest.mark.parametrize(
    "order, taken",
    [
        ("torch.randperm(8)", "x[order]"),
        ("torch.from_numpy(np.random.permutation(8))", "x[order]"),
        ("np.random.permutation(8)", "x[order]"),
        ("torch.randperm(8)", "x.index_select(0, order)"),
        ("torch.arange(8)", "x.index_select(1, torch.randperm(6))"),
    ],
)
def test_shuffled_by_the_step(tmp_path, order, taken, options):
    """Without an experiment it is not known which sample a row is, and none is named."""
    got = helpers.run(
        tmp_path, SHUFFLED.replace("ORDER", order).replace("TAKEN", taken), "--on-alarm", "skip", *options
    )
    alarm = got.the_alarm()
    kept = "select(1" in taken
    assert alarm["step"] == 5 and alarm["cause"]["class"] == "division-by-zero", got.text()
    assert alarm["births"][0].get("samples") == ([42] if kept or not options else None), alarm["births"][0]
    if not options:
        assert alarm["births"][0]["rows"] == [2]
        assert any(e.get("samples") == [42] for e in alarm["cause"]["experiments"])
