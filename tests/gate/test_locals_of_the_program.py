"""A dict that locals() gave the program is the program's: watched or not, what it says stays as it is."""

import collections

import pytest
import torch

import helpers
from finitude._native import Known
from helpers import run

pytestmark = pytest.mark.fast

# Before Python 3.13 locals() of a function is one dict to a frame, which frame.f_locals fills again.
SCRIPT = """
import torch
from torch import nn

def log(fields, step, loss):
    print(step, sorted(fields), fields.get("lr"), fields.get("step"), "loss" in fields, loss.isfinite().item())

def main(lr=0.1, width=4):
    hyper = locals()
    torch.manual_seed(0)
    gap = torch.ones(())
    model = nn.Linear(width, 3)
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    inner = lambda: (gap, lr)
    for step in range(8):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) + BAD
        loss.backward()
        opt.step()
        log(hyper, step, loss)

main()
"""


@pytest.mark.parametrize(
    "bad", ["0", "torch.log(torch.full((), float(step == 9)))", "(torch.log(gap * 0) if step == 3 else 0)"]
)
def test_it_says_what_it_says_unwatched(tmp_path, bad):
    script = SCRIPT.replace("BAD", bad)
    got = run(tmp_path, script, "--on-alarm", "skip")
    plain = helpers.plain(tmp_path, "train.py").out

    def without_loss(text):  # what the loss is after a step that was left out is another matter
        return [line.rsplit(" ", 1)[0] for line in text.splitlines()]

    assert len(without_loss(plain)) == 8 and without_loss(got.out) == without_loss(plain), got.text()
    assert bool(got.alarms) == (bad != "0")
    if got.alarms:
        assert got.alarms[0]["births"][0]["op"] == "aten::log", got.text()


def test_bad_values_of_frames_are_known_until_written():
    """Also of a frame whose names lie in a mapping that is no dict."""

    known, names = Known(), collections.UserDict(known=None, torch=torch)
    names["known"] = known
    text = "part = torch.full((2,), float('nan')); loss = part.clone().requires_grad_() * 1; known.note_frames()"
    exec(text, {}, names)
    assert [name for name, _ in known.carried] == ["loss"]
    assert names["loss"] in known and names["part"] not in known
    assert [t is names["part"] for t in known.still_held()] == [True]
    names["part"].zero_()
    assert not known.still_held()
    with torch.no_grad():
        names["loss"].zero_()
    assert names["loss"] not in known
