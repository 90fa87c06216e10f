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


LARGE = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
INIT
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4)
    loss = (net(x) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("init", "name"),
    [("nn.init.constant_(net[2].weight, 1e38)", "2.weight"), ("net[0].weight.data.mul_(1e20)", "0.weight")],
)
def test_the_weight_that_made_it_so_large_is_named(tmp_path, init, name):
    alarm = run(tmp_path, LARGE.replace("INIT", init)).the_alarm()
    assert f"the size comes from {name}, which reaches" in alarm["cause"]["text"], alarm["cause"]["text"]
    assert f"initialise {name} with smaller values" in alarm["fix"]["text"], alarm["fix"]["text"]
    assert ("weights are finite but 2.weight reaches 1e+38, 1.8 bits below" in alarm["text"]) is (name == "2.weight")


@pytest.mark.parametrize("size", ["2e38", "1e30", "1e-40"])
def test_weights_at_the_ends_of_their_dtype_are_named_before_the_first_step(tmp_path, size):
    """Nothing overflows: a bounded function hides it."""
    text = LARGE.replace("net(x) - 1", "net(x).tanh() - 1")
    result = run(tmp_path, text.replace("INIT", f"nn.init.constant_(net[2].weight, {size})"))
    assert not result.alarms, result.text()
    said = [a["text"] for a in result.advisories("headroom")]
    expected = {
        "2e38": ["before the first step 2.weight reaches 2e+38, 0.77 bits below the limit of float32"],
        "1e30": [],
        "1e-40": ["before the first step 2.weight is subnormal in float32, 1e-40 at most"],
    }[size]
    assert [s.partition(":")[0] for s in said] == expected
