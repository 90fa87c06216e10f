"""Rows in the store of watched runs, and what `--skip-rows` makes of a run."""

import json
import pathlib

import pytest

from finitude.base import skip_list
from finitude.rows import found
from helpers import finitude, run

TRAINING = """
import sys, torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
class Texts(Dataset):
    bad = ()
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return torch.full((4,), float("nan") if i in self.bad else 0.1 * i), i
used = []
def step(*batches):
    opt.zero_grad()
    for x, rows in batches:
        model(x).pow(2).mean().backward()
        used.append(rows.tolist())
    opt.step()
"""


def stored(result):
    """{step: (event, applied, [rows of each micro-batch])}, and the batches."""
    (folder,) = pathlib.Path(result.folder).glob("finitude-runs/*/")
    (process,) = found.processes(str(folder))
    steps, batches = {}, process.batches("")
    for batch in batches:
        steps.setdefault(batch.step, (batch.event, batch.applied, []))[2].append(batch.ids)
    return steps, batches, process


def test_rows_of_each_step_are_stored(tmp_path):
    text = (
        TRAINING
        + """
if __name__ == "__main__":
    loader = DataLoader(Texts(), batch_size=4, shuffle=True, num_workers=2)
    for epoch in range(2):
        for batch in loader: step(batch)
    with torch.no_grad():
        for batch in loader: pass
    few = iter(DataLoader(Texts(), batch_size=4))
    for _ in range(3): step(next(few), next(few))
    print(used)
"""
    )
    result = run(tmp_path, text)
    steps, batches, process = stored(result)
    assert result.code == 0, result.text()
    assert [rows for number in sorted(steps) for rows in steps[number][2]] == json.loads(result.out), result.text()
    assert {(event, applied) for event, applied, _ in steps.values()} == {(None, True)}
    assert [len(steps[number][2]) for number in sorted(steps)] == [1] * 12 + [2] * 3
    assert [batch.epoch for batch in batches] == [0] * 6 + [1] * 6 + [0] * 6
    assert [batch.worker for batch in batches] == [0, 1] * 6 + [None] * 6
    assert list(process.datasets.values()) == [("Texts", 24), ("Texts", 24)]


def test_rows_of_bad_steps_are_skipped_later(tmp_path):
    text = (
        TRAINING
        + """
Texts.bad = (5, 17)
for epoch in range(2):
    for batch in DataLoader(Texts(), batch_size=4): step(batch)
print(used)
"""
    )
    options = ("--on-alarm", "skip", "--experiments", "0", "--capsules", "0")
    result = run(tmp_path, text, *options)
    steps, *_ = stored(result)
    bad = {number: rows for number, (event, applied, rows) in steps.items() if event == "alarm" and not applied}
    assert bad == {1: [[4, 5, 6, 7]], 4: [[16, 17, 18, 19]], 7: [[4, 5, 6, 7]], 10: [[16, 17, 18, 19]]}, result.text()
    assert len(steps) == 12
    skip_list.write(str(tmp_path / "skip.jsonl"), [skip_list.Skipped("Texts", 24, [5, 17])])
    again = finitude(tmp_path, "run", "--skip-rows", "skip.jsonl", "train.py")
    rows = [row for batch in json.loads(again.out) for row in batch]
    assert again.code == 0 and rows == [row for row in range(24) if row not in (5, 17)] * 2, again.text()
    assert "2 rows of Texts are skipped" in again.err


def with_one_bad_batch(tmp_path, *options, lr):
    """Of 100: that of step 60, rows 240 to 243. What `finitude rows` lists of the run is that."""
    text = (
        TRAINING.replace("return 24", "return 400").replace('float("nan") if i in self.bad', "60.0 if i in self.bad")
        + """
Texts.bad = (240, 241, 242, 243)
for batch in DataLoader(Texts(), batch_size=4): step(batch)
"""
    )
    result = run(tmp_path, text.replace("0.1 * i", "1.0 + i % 7 / 70").replace("lr=0.01", f"lr={lr}"), *options)
    listed = finitude(tmp_path, "rows", "--json", "--skip-list", "skip.jsonl")
    assert listed.code == 0, listed.text()
    (bad,) = [one for one in json.loads(listed.out)["steps"] if one["event"] == "spike"]
    assert (bad["step"], bad["batches"][0]["ids"]) == (60, [240, 241, 242, 243])
    assert [one.ids for one in skip_list.read(str(tmp_path / "skip.jsonl"))] == [[240, 241, 242, 243]]
    return result


def test_rows_of_a_spike_are_those_that_made_the_loss_jump(tmp_path):
    """It is said three steps later, when the loss has not come back."""
    result = with_one_bad_batch(tmp_path, "--warnings", "spike", lr=0.01)
    assert [(w["since"], w["step"]) for w in result.report["warnings"]] == [(60, 63)], result.text()
    assert "finitude: warning: step 63: the loss jumped" in " ".join(result.err.split())


def test_a_single_bad_batch_has_an_event_and_rows_and_no_line(tmp_path):
    result = with_one_bad_batch(tmp_path, lr=0.0)
    (found,) = result.report["warnings"]
    assert (found["what"], found["name"], found["since"], found["step"]) == ("outlier", "loss", 60, 60), result.text()
    assert "finitude: warning" not in result.err, result.text()
    (file,) = pathlib.Path(result.folder).glob("finitude-runs/*/events.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(e["kind"], e["step"]) for e in events if e["step"] is not None] == [("warning", 60)], events


@pytest.mark.slow
def test_loader_asked_ahead_has_rows_of_its_step(tmp_path):
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "data_loader.py").write_text("""
def ahead(loader):
    iterator = loader.__iter__()
    try:
        batch = next(iterator)
    except StopIteration:
        return
    while True:
        try:
            following = next(iterator)
        except StopIteration:
            yield batch
            return
        yield batch
        batch = following
""")
    text = (
        TRAINING
        + """
from accelerate.data_loader import ahead
loader = DataLoader(Texts(), batch_size=4, shuffle=True)
for epoch in range(2):
    for batch in ahead(loader): step(batch)
batches = ahead(loader)
for _ in range(3): step(next(batches), next(batches))
print(used)
"""
    )
    result = run(tmp_path, text)
    steps, *_ = stored(result)
    assert [rows for number in sorted(steps) for rows in steps[number][2]] == json.loads(result.out), result.text()


@pytest.mark.slow
def test_redacted_runs_keep_no_rows(tmp_path):
    result = run(tmp_path, TRAINING + "for batch in DataLoader(Texts(), batch_size=4): step(batch)\n", "--redact")
    with pytest.raises(found.NoRows, match="--redact"):
        stored(result)


def test_wrong_skip_lists_are_usage_errors(tmp_path):
    (tmp_path / "skip.jsonl").write_text("{}\n")
    for name in ("skip.jsonl", "none.jsonl"):
        result = run(tmp_path, TRAINING, "--skip-rows", name)
        assert result.code == 2 and "--skip-rows: cannot read" in result.err, result.text()
