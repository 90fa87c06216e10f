"""A product beyond the format in the first step: no update has been made, so none was too large."""

import pytest

from helpers import run

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 8)
opt = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(4):
    out = net(torch.randn(4, 8)) * 1e25
    loss = (out * out).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("level", ["gate", "trace"])
def test_it_is_no_learning_rate(tmp_path, level):
    got = run(tmp_path, PROGRAM, "--level", level)
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == "overflow" and "out * out" in alarm["births"][0]["source"], got.text()
    assert "learning rate" not in alarm["cause"]["text"] + alarm["fix"]["text"], got.text()
