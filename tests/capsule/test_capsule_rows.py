"""Of a large table of which the step reads some rows, a capsule has these rows."""

import json
import os

import pytest

import helpers

ROWS, WIDTH = 20_000, 100  # 8 MB
TRAINING = f"""
import torch
from torch import nn

torch.manual_seed(0)
X = torch.rand({ROWS}, {WIDTH})
y = torch.rand({ROWS}, 1)
BEFORE
model = nn.Linear({WIDTH}, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(6):
    idx = torch.randint(0, {ROWS}, (16,))
    BATCH
    opt.zero_grad()
    loss = ((model(xb) - yb) ** 2).mean().div(0.0 if i == 4 else 1.0)
    loss.backward()
    opt.step()
"""

READS = {
    "index": "xb, yb = X[idx], y[idx]",
    "index of two axes": "xb, yb = X[idx.view(4, 4)].view(16, -1), y[idx - len(y)]",
    "index_select": "xb, yb = torch.index_select(X, 0, idx.int()), y[idx]",
    "marks": "marks = torch.zeros(len(X), dtype=torch.bool); marks[idx] = True; xb, yb = X[marks], y[marks]",
    "rows one by one": "xb, yb = torch.stack([X[int(n)] for n in idx]), y[idx]",
    "slices": "at = int(idx[0]) % 1000; xb, yb = torch.cat([X[at:at + 8], X[-at - 9:-at - 1]]), y[:16]",
    "embedding": "xb, yb = torch.nn.functional.embedding(idx, X), y[idx]",
    "transposed": "xb, yb = X.t()[:, idx].t(), y[idx]",
}
WHOLE = {
    "columns": "xb, yb = X[:, idx % 100].t()[:, :100], y[idx]",
    "all of it": "xb, yb = (X - X.mean(0))[idx], y[idx]",
    "rows that it writes": "X[idx] *= 0.5; xb, yb = X[idx], y[idx]",
    "a mask for each value": "xb, yb = X[(X > 2).logical_or(X > -1)].view(-1, 100)[:16], y[:16]",
}


def made(folder, batch, before=""):
    text = TRAINING.replace("BATCH", batch).replace("BEFORE", before)
    got = helpers.run(folder, text)
    capsule = got.the_alarm()["capsule"]
    assert capsule is not None, got.text()
    capsule = os.path.join(folder, capsule)
    return got, capsule, sum(f.stat().st_size for f in os.scandir(capsule))


def replayed(folder, capsule):
    about = json.loads(open(os.path.join(capsule, "capsule.json")).read())
    assert about["replay"] == "identical", about["replay"]
    again = helpers.finitude(folder, "replay", capsule)
    assert again.code == 0 and "identical" in again.out, again.out


@pytest.mark.parametrize("way", READS)
def test_only_the_rows_that_are_read_are_stored(tmp_path, way):
    got, capsule, size = made(tmp_path, READS[way])
    assert size < 1_000_000
    replayed(tmp_path, capsule)


@pytest.mark.parametrize("way", WHOLE)
def test_tensor_read_whole_or_written_is_stored_whole(tmp_path, way):
    _, capsule, size = made(tmp_path, WHOLE[way])
    assert size > 4 * ROWS * WIDTH
    replayed(tmp_path, capsule)


@pytest.mark.parametrize(("before", "first"), [("X[:, 3] += 1e-3", "data"), ("torch.rand(3)", "aten::randint")])
def test_diff_distinguishes_other_rows_from_other_numbers(tmp_path, before, first):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, a, _ = made(tmp_path / "a", READS["index"])
    _, b, _ = made(tmp_path / "b", READS["index"], before)
    out = helpers.finitude(tmp_path, "diff", a, b).out
    heading = next(line for line in out.splitlines() if line.startswith("first"))
    assert first in heading, out
    # The rows of a table are one difference, not one each: those of X, and of y where other rows are drawn.
    assert out.count("read by (memory)") == (1 if first == "data" else 2), out
