"""A bad weight that came to light late: a second process finds the step, and once it is known that step gets its
capsule too."""

import pytest

from helpers import run
from replayed_alone import replayed

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
AT, LAST = WHEN, 8
model = nn.Sequential(nn.Linear(4, 300), nn.Linear(300, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def scale():
    with torch.no_grad():
        model[0].bias.div_(torch.where(torch.arange(300) == 250, 0.0, 1.0))
for i in range(LAST):
    x = torch.rand(8, 4)
    loss = model[0](x)[:, :1].mul(0.1).mean() + model[1].weight[:, 0].pow(2).sum()
    if i == AT:
        scale()
    opt.zero_grad()
    loss.backward()
    opt.step()
if AT == LAST:
    scale()
"""


@pytest.mark.fast
def test_found_step_has_capsule_and_tried_fix(tmp_path):
    got = run(tmp_path, SCRIPT.replace("WHEN", "5"), "--on-alarm", "warn")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (5, "restart", True), got.text()
    assert alarm["births"][0]["op"] == "aten::div_" and "model[0].bias.div_(" in alarm["births"][0]["source"], (
        got.text()
    )
    assert alarm["fix"]["verified"] and "whole step" in str(alarm["cause"]["experiments"]), got.text()
    assert replayed(got)["step"] == 5
    assert "a capsule of step" not in got.err, got.text()


def test_bad_value_after_last_step_has_no_capsule(tmp_path):
    alarm = (got := run(tmp_path, SCRIPT.replace("WHEN", "8"), "--on-alarm", "warn")).the_alarm()
    assert alarm["births"][0]["op"] == "aten::div_" and not alarm["capsule"], got.text()
    assert "the bad value came up after the last step" in got.err, got.text()


@pytest.mark.fast
def test_no_capsule_is_wanted(tmp_path):
    alarm = (got := run(tmp_path, SCRIPT.replace("WHEN", "5"), "--on-alarm", "warn", "--capsules", "0")).the_alarm()
    assert alarm["step"] == 5 and not alarm["capsule"] and "as it was recorded" not in alarm["rerun_text"], got.text()
