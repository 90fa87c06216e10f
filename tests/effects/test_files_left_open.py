"""A program that never closes its file: the interpreter writes out what is left as it ends, watched or not."""

import pytest

import helpers

# A class of the program's holds the file, and stands in a module that its own methods lead back to.
LEAVES_OPEN = """
import csv, sys, torch
from torch import nn


class Trainer:
    def __init__(self):
        self.file = open("curve.csv", "w", newline="")
        self.rows = csv.writer(self.file)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, data):
        for i, x in enumerate(data):
            x = x.clone()
            if i == BAD:
                x[0] = 0
            loss = (self.model(x)[:, 0] - x.sum(1).log()).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.rows.writerow([i])


torch.manual_seed(0)
trainer = Trainer()
try:
    trainer.fit(torch.utils.data.DataLoader(torch.rand(32, 3), batch_size=4))
finally:
    print("over")
"""
RUNS = [
    (-1, (), 8),
    (-1, ("--level", "trace"), 8),
    (-1, ("--level", "tape"), 8),
    (-1, ("--undo-mb", "4"), 8),
    (5, ("--on-alarm", "skip"), 8),
    (5, ("--on-alarm", "warn"), 8),
    (5, ("--on-alarm", "stop"), 5),
]


# Each in an interpreter of its own, whose end writes the file. Healthy, skipped and stopped are the three ways that such a
# run ends; what else holds objects of the program (a trace, a tape, copies) is thorough.
IN_EACH_RUN = (0, 4, 6)


@pytest.mark.parametrize(
    "bad, options, rows",
    [pytest.param(*r, marks=() if i in IN_EACH_RUN else pytest.mark.thorough) for i, r in enumerate(RUNS)],
    ids=[f"{b} {' '.join(o)}" for b, o, _ in RUNS],
)
def test_unflushed_output_is_written_at_exit(tmp_path, bad, options, rows):
    got = helpers.run(tmp_path, LEAVES_OPEN.replace("BAD", str(bad)), *options, cold=True)
    assert len((tmp_path / "curve.csv").read_text().split()) == rows, got.text()
