"""Runs `finitude doctor --json` on a program text and hands back what it found."""

import json
import textwrap

from helpers import finitude, write_script

# A small healthy training to put one fault into.
TRAINING = """
import torch
import torch.nn.functional as F
from torch import nn
NAN, INF = float("nan"), float("inf")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
"""


def doctor(folder, *words):
    """(exit code, JSON document or None, standard error)."""
    done = finitude(folder, "doctor", "--json", *words)
    return done.code, json.loads(done.out) if done.out.strip() else None, done.err


def examine(folder, text, *options, args=()):
    write_script(folder, text, "train.py")
    return doctor(folder, *options, "train.py", *args)


def found(document, check=None, verdicts=("bad", "warn", "note")):
    return [f for f in document["findings"] if check in (None, f["check"]) and f["verdict"] in verdicts]


def line_of(text, mark):
    """The number of the line that holds `mark`, in the text as `write_script` writes it."""
    return next(i for i, line in enumerate(text.lstrip("\n").splitlines(), 1) if mark in line)


def assert_speaks(folder, check, verdict, word, options, body):
    """The check finds exactly one thing whose text has `word`, at the line that ends with "# here" if there is one."""
    text = TRAINING.lstrip("\n") + textwrap.dedent(body)
    code, document, err = examine(folder, text, *options)
    findings = [f for f in found(document, check) if word in f["text"]]
    assert [f["verdict"] for f in findings] == [verdict], (document["findings"], err)
    assert findings[0]["seen_in"] == "steps" and not document["trouble"]
    if "# here" in text:
        assert findings[0]["line"] == line_of(text, "# here"), findings
    assert (code == 1) == bool(found(document, verdicts=("bad",)))
